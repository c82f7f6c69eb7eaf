// Convolutions of which 64 filters share their zeros: one kernel for every shape, weight and tile of `plane_cuda`.
//
// What 64 filters use of the input is a list of planes: channels, rows of taps of channels, or single taps (c, r, s).
// The others are neither read nor multiplied. Tensor cores (`wgmma`) multiply 64 filters with 8 planes at a time, twice,
// and N pixels: a k-step.
//
// Pixels of all images lie on one line: rows with zeros between them that pad both neighbours, images with rows of zeros
// between them. There a tap is a distance, the same for all pixels. A tile is N pixels of that line, wherever they begin;
// what it needs of 8 planes is staged as 16 bytes for each place, which is how tensor cores read B, so a k-step of any tap
// begins at some multiple of 16 bytes. Outputs between rows and images are computed and not written.
//
// Float32 is computed in three products of float16 (Ootomo & Yokota, Recovering single precision accuracy from Tensor
// Cores, 2022): each number is the sum of a float16 number, its high part, and of what that misses, its low part; low parts
// are not multiplied with each other. An input's low part is stored 2**11 times as large, so that it has a float16 number's
// range of its own, and its products are added up apart. Weights are scaled by filters, to float16's range. Inputs are taken
// as they are. Where the largest of a pixel's is too large or too small for float16, a tile is computed again with all inputs
// scaled by a power of two, for pixels whose largest is in the same window of 26 powers.
//
// A block keeps the weights of its 64 filters in shared memory, and goes on from tile to tile. Two warpgroups write inputs
// of planes, a chunk of them at a time, through a ring of slots; two others have every other tile each, so that one
// multiplies while the other writes its outputs.

#include "plane_weights.cuh"
#include "plane_inputs.cuh"

// How many output pixels are before a place of the line.
__device__ __forceinline__ int pixels_before(const Geometry& g, int place) {
  const int image = g.image_places.quotient(place), in_image = place - image * g.image_places;
  const int row = g.pitch.quotient(in_image), column = in_image - row * g.pitch;
  return image < g.batch ? image * g.out_map + min(row * g.out_w + min(column, g.out_w), g.out_map) : g.batch * g.out_map;
}

// V neighbouring pixels of a filter.
template <int V>
struct __align__(V * sizeof(Element)) Pixels {
  Element at[V];
};

#ifdef TVM_SPARSE_HALF
// Two neighbours, and a ReLU of them, without which there is none.
struct Neighbours {
  unsigned pair;
  __device__ __forceinline__ float number(int which) const { return part_of(pair, which); }
  __device__ __forceinline__ void become(Neighbours others, bool, bool) { *this = others; }
};
struct Limits {
  unsigned least, most;
  __device__ __forceinline__ explicit Limits(const Geometry& g) {
    const unsigned infinite = as_pair(BITS_AS_FLOAT(0x7f800000), BITS_AS_FLOAT(0x7f800000));
    const float relu_max = BITS_AS_FLOAT(g.relu_max);
    least = g.relu ? 0 : infinite | 0x80008000u, most = g.relu ? as_pair(relu_max, relu_max) : infinite;
  }
  __device__ __forceinline__ Neighbours of(float first, float second) const {
    return {smaller(larger(as_pair(first, second), least), most)};
  }
};
#else
struct __align__(8) Neighbours {
  float numbers[2];
  __device__ __forceinline__ float number(int which) const { return numbers[which]; }
  // Those that count.
  __device__ __forceinline__ void become(Neighbours others, bool first, bool second) {
    *this = {first ? others.numbers[0] : numbers[0], second ? others.numbers[1] : numbers[1]};
  }
};
struct Limits {
  float least, most;
  __device__ __forceinline__ explicit Limits(const Geometry& g) {
    const float infinite = BITS_AS_FLOAT(0x7f800000);
    least = g.relu ? 0.f : -infinite, most = g.relu ? BITS_AS_FLOAT(g.relu_max) : infinite;
  }
  __device__ __forceinline__ Neighbours of(float first, float second) const {
    return {smaller(larger(first, least), most), smaller(larger(second, least), most)};
  }
};
#endif

// Where a warp's 16 filters of a tile lie in shared memory on their way.
template <int N>
__device__ __forceinline__ Element* staged_outputs() {
  SHARED_MEMORY;
  return (Element*)shared + (threadIdx.x >> 5) * 16 * Block<N>::OUT_PITCH;
}

// A tile's pixels follow each other in memory, from image to image. So a warp moves 64 or 128 bytes of a filter at once,
// which begin where 32 bytes do in a map: `move` is told where its lane's pixels are from an image's first map on, and in
// the tile.
template <int N, int V, typename Move>
__device__ __forceinline__ void move_pixels(const Geometry& g, int tile, Move move) {
  constexpr int AT_ONCE = 32 * V, ALIGNED = 32 / sizeof(Element);
  const int begin = pixels_before(g, tile * N), end = pixels_before(g, tile * N + N);
#pragma unroll
  for (int i = 0; i <= N / AT_ONCE; i++) {
    const int pixel = begin / ALIGNED * ALIGNED + i * AT_ONCE + (threadIdx.x & 31) * V;
    const int image = g.out_map.quotient(pixel), in_map = pixel - image * g.out_map;
    const int row = g.out_w.quotient(in_map);
    if (pixel >= begin && pixel < end)
      move(image * g.out_image + in_map, image * g.image_places + row * g.pitch + in_map - row * g.out_w - tile * N);
  }
}

// What is added comes to where the outputs will be.
template <int N, int V>
__device__ __forceinline__ void stage_residual(const Block<N>& block, int tile, const Element* residual) {
  Element* const staged = staged_outputs<N>();
  __syncwarp();
  move_pixels<N, V>(block.g, tile, [&](int at, int place) {
    const Weights::Maps maps = block.weights.maps();
    const Element* from[16];
#pragma unroll
    for (int i = 0; i < 16; i++) from[i] = residual + (maps[i] + at);
    if constexpr (V * sizeof(Element) >= 4) {
#pragma unroll
      for (int i = 0; i < 16; i++) copy<V * sizeof(Element)>(staged + i * Block<N>::OUT_PITCH + place, from[i], true);
    } else {
      // Too little to be copied asynchronously.
      Element values[16];
#pragma unroll
      for (int i = 0; i < 16; i++) values[i] = *from[i];
#pragma unroll
      for (int i = 0; i < 16; i++) staged[i * Block<N>::OUT_PITCH + place] = values[i];
    }
  });
  commit_copies();
}

// A thread's outputs to where its warp moves them from, of pixels that `counts` says.
template <int N, typename Counts>
__device__ __forceinline__ void stage_outputs(const Geometry& g, const float (&sums)[N / 2], Counts counts) {
  constexpr int PITCH = Block<N>::OUT_PITCH;
  const int lane = threadIdx.x & 31;
  Neighbours* const own = (Neighbours*)(staged_outputs<N>() + (lane >> 2) * PITCH) + (lane & 3);
  const Limits limits(g);
#pragma unroll
  for (int i = 0; i < N / 4; i++) {
    Neighbours* to = own + (i & 1) * 4 * PITCH + (i >> 1) * 4;
    float first = sums[2 * i], second = sums[2 * i + 1];
    if (g.has_residual) first += to->number(0), second += to->number(1);
    const Neighbours found = limits.of(first, second);
    const int pixel = (i >> 1) * 8 + (lane & 3) * 2;
    to->become(found, counts(pixel), counts(pixel + 1));
  }
}

template <int N, int V>
__device__ __forceinline__ void write_outputs(const Block<N>& block, int tile, Element* y) {
  const Element* const staged = staged_outputs<N>();
  __syncwarp();
  move_pixels<N, V>(block.g, tile, [&](int at, int place) {
    const Weights::Maps maps = block.weights.maps();
    Pixels<V> values[16];
#pragma unroll
    for (int i = 0; i < 16; i++) values[i] = *(const Pixels<V>*)(staged + i * Block<N>::OUT_PITCH + place);
#pragma unroll
    for (int i = 0; i < 16; i++) *(Pixels<V>*)(y + (maps[i] + at)) = values[i];
  });
}

// Those who multiply: a warpgroup.
template <int N>
struct Multiplier {
  const Block<N>& block;
  int number;
  unsigned ring, fragments;

  __device__ __forceinline__ Multiplier(const Block<N>& block, int number) : block(block), number(number) {
    ring = shared_address(block.ring) >> 4;
    fragments = lower_half(shared_address(block.weights.units + block.weights.fragments_at), HALF * 16);
  }
  // A chunk's products, from where its inputs are; they are on their way then.
  __device__ __forceinline__ void multiply(int chunk, int slot, float (&sums)[N / 2],
                                           float (&low_sums)[PARTS > 1 ? N / 2 : 1]) const {
    const Weights& weights = block.weights;
    const unsigned inputs = ring + slot * block.slot_units, part_units = block.g.slot_groups * block.g.staged;
    const int begin = same_of_all(weights.chunk(chunk).y), end = same_of_all(weights.chunk(chunk + 1).y);
    begin_products();
    for (int step = begin; step < end; step++) {
      const unsigned own = fragments + step * PARTS * STEP, places = inputs + weights.step(step);
      add_product(sums, descriptor(own), descriptor(places));
      if constexpr (PARTS > 1) {
        add_product(sums, descriptor(own + STEP), descriptor(places));
        add_product(low_sums, descriptor(own), descriptor(places + part_units));
      }
    }
    commit_products();
  }
};

// Every other tile.
template <int N>
__device__ __forceinline__ void multiply(const Block<N>& block, const Element* bias, const Element* residual, Element* y) {
  const Geometry& g = block.g;
  const Weights& weights = block.weights;
  const int lane = threadIdx.x & 31, row = (threadIdx.x >> 5 & 3) * 16 + (lane >> 2);
  const Multiplier<N> own(block, same_of_all(threadIdx.x >> 7));
  float first[2] = {0.f, 0.f};
  if (g.has_bias) first[0] = widened(bias[weights.filter(row)]), first[1] = widened(bias[weights.filter(row + 8)]);
  const float scales[2] = {weights.scale(row), weights.scale(row + 8)};
  int number = own.number * weights.chunks, slot = number % block.slots;
  wait_for_kernel();
  for (int own_tile = own.number;; own_tile += MULTIPLIERS) {
    const int tile = block.worker + own_tile * g.workers;
    if (tile >= g.tiles) break;
    if (g.has_residual && g.vector == 2)
      stage_residual<N, 2>(block, tile, residual);
    else if (g.has_residual)
      stage_residual<N, 1>(block, tile, residual);
    // Windows that pixels are in where not all are in that of inputs as they are, those that are left, and the one that is
    // computed.
    unsigned windows = 0, left = 0;
    int window = WINDOWS, last = 0;
    bool is_odd = false;
    do {
      float sums[N / 2], low_sums[PARTS > 1 ? N / 2 : 1];
#pragma unroll
      for (int i = 0; i < N / 2; i++) sums[i] = PARTS > 1 ? 0.f : first[i >> 1 & 1];
      if constexpr (PARTS > 1)
#pragma unroll
        for (int i = 0; i < N / 2; i++) low_sums[i] = 0.f;
      for (int chunk = 0; chunk < weights.chunks; chunk++) {
        if (PARTS > 1 && left) {
          barrier_sync(FULL_AGAIN + own.number, HANDING);
        } else {
          barrier_sync(FULL + MULTIPLIERS * slot + own.number, HANDING);
          last = slot, slot = block.next(slot), number++;
        }
        own.multiply(chunk, last, sums, low_sums);
        if (PARTS > 1 && !left) {
          is_odd = is_odd || same_of_all(block.ranges.odd[last]) == number;
          if (threadIdx.x % 128 == 0) block.ranges.asked[last] = is_odd && chunk + 1 == weights.chunks ? 1 + own_tile : 0;
        }
        wait_for_products<0>();
        barrier_arrive(PARTS > 1 && left ? EMPTY_AGAIN : EMPTY + last, HANDING);
      }
#pragma unroll
      for (int i = 0; i < N / 2; i++) computed(sums[i]);
      if constexpr (PARTS > 1) {
#pragma unroll
        for (int i = 0; i < N / 2; i++) computed(low_sums[i]);
        const float scale = Ranges<N>::scale(2 * WINDOWS - window);
#pragma unroll
        for (int i = 0; i < N / 2; i++)
          sums[i] = fmaf(fmaf(low_sums[i], 1 / LOW, sums[i]) * scales[i >> 1 & 1], scale, first[i >> 1 & 1]);
      }
      wait_for_copies<0>();
      __syncwarp();
      if (PARTS > 1 && is_odd) {
        if (!windows) {
          barrier_sync(FULL_AGAIN + own.number, HANDING);
          windows = same_of_all(block.ranges.windows[own.number]);
        }
        const unsigned char* of = block.ranges.window_of + own.number * N;
        stage_outputs<N>(g, sums, [&](int pixel) { return of[pixel] == window; });
        left = left ? left & left - 1 : windows & ~(1u << WINDOWS);
        window = first_bit(left);
      } else {
        stage_outputs<N>(g, sums, [](int) { return true; });
      }
    } while (PARTS > 1 && left);
    if (g.vector == 2)
      write_outputs<N, 2>(block, tile, y);
    else
      write_outputs<N, 1>(block, tile, y);
    // The other's tile lies between.
    number += weights.chunks;
    slot = number % block.slots;
  }
}

template <int N>
__device__ __forceinline__ void convolution(const Geometry& g, const Element* __restrict__ x,
                                            const int4* __restrict__ weights, const Element* __restrict__ bias,
                                            const Element* __restrict__ residual, Element* __restrict__ y) {
  SHARED_MEMORY;
  int4* const own = (int4*)shared + Block<N>::OUT_UNITS;
  const int worker = g.k_tiles.divide(blockIdx.x), k_tile = blockIdx.x - worker * g.k_tiles;
  for (int i = threadIdx.x; i < g.stride; i += blockDim.x) copy<16>(own + i, weights + (size_t)k_tile * g.stride + i, true);
  commit_copies();
  const Ranges<N> ranges(own + g.stride);
  ranges.clear();
  wait_for_copies<0>();
  show_tensor_cores();
  __syncthreads();
  launch_next();
  const Weights held(own);
  int4* const ring = own + g.stride + Ranges<N>::UNITS;
  const int slot_units = PARTS * g.slot_groups * g.staged, left = g.shared_units - (int)(ring - (int4*)shared);
  const Block<N> block = {g, held, ranges, ring, worker, min(MAX_SLOTS, left / slot_units), slot_units};
  if (same_of_all(threadIdx.x >> 7) >= MULTIPLIERS) {
    give_registers<WRITERS_REGISTERS>();
    wait_for_kernel();
    write_inputs(block, x);
  } else {
    take_registers<256 - WRITERS_REGISTERS>();
    multiply(block, bias, residual, y);
  }
}

#define CONVOLUTION(N) KERNEL(128 * MULTIPLIERS + WRITING, 1, tvm_sparse_plane_##N, convolution<N>)
CONVOLUTION(64) CONVOLUTION(128)
// Sums of two kinds have not room in the registers of a thread.
#ifdef TVM_SPARSE_HALF
CONVOLUTION(192)
#endif
