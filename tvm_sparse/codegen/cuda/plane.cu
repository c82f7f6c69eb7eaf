// Convolutions of which 64 filters share their zeros: one kernel for every shape, weight and tile of `plane_cuda`.
//
// What 64 filters use of the input is a list of planes: channels, rows of taps of channels, or single taps (c, r, s).
// The others are neither read nor multiplied. Tensor cores (`wgmma`) multiply 64 filters with 8 planes at a time,
// twice, and N pixels: a k-step.
//
// Pixels of all images lie on one line: rows with zeros between them that pad both neighbours, images with rows of
// zeros between them. There a tap is a distance, the same for all pixels. A tile is N pixels of that line, wherever
// they begin; what it needs of 8 planes is staged as 16 bytes for each place, which is how tensor cores read B, so a
// k-step of any tap begins at some multiple of 16 bytes. Outputs between rows and images are computed and not written.
//
// Float32 is computed in three products of float16 (Ootomo & Yokota, Recovering single precision accuracy from Tensor
// Cores, 2022): each number is the sum of a float16 number, its high part, and of what that misses, its low part; low
// parts are not multiplied with each other. An input's low part is stored 2**11 times as large, so that it has a
// float16 number's range of its own, and its products are added up apart. Weights are scaled by filters, to float16's
// range. Inputs are taken as they are. Where the largest of a pixel's is too large or too small for float16, a tile is
// computed again with all inputs scaled by a power of two, for pixels whose largest is in the same window of 26 powers.
//
// A block keeps the weights of its 64 filters in shared memory, and goes on from tile to tile. Two warpgroups write
// inputs of planes, a chunk of them at a time, through a ring of slots; two others have every other tile each, so that
// one multiplies while the other writes its outputs.

#include "plane_weights.cuh"
#include "plane_inputs.cuh"

namespace tvm_sparse {

// How many output pixels are before a place of the line.
DEVICE int pixels_before(const Geometry& g, int place) {
  const int image = g.image_places.quotient(place), in_image = place - image * g.image_places;
  const int row = g.pitch.quotient(in_image), column = in_image - row * g.pitch;
  return image < g.batch ? image * g.out_map + min(row * g.out_w + min(column, g.out_w), g.out_map)
                         : g.batch * g.out_map;
}

// V neighbouring pixels of a filter.
template <int V> struct __align__(V * sizeof(Element)) Pixels {
  Element at[V];
};

#ifdef TVM_SPARSE_HALF
// Two neighbours, and a ReLU of them, without which there is none.
struct Neighbours {
  unsigned pair;
  DEVICE float number(int which) const { return part_of(pair, which); }
  DEVICE void become(Neighbours others, bool, bool) { *this = others; }
};
struct Limits {
  unsigned least, most;
  DEVICE explicit Limits(const Geometry& g) {
    const unsigned infinite = as_pair(BITS_AS_FLOAT(0x7f800000), BITS_AS_FLOAT(0x7f800000));
    const float relu_max = BITS_AS_FLOAT(g.relu_max);
    least = g.relu ? 0 : infinite | 0x80008000u, most = g.relu ? as_pair(relu_max, relu_max) : infinite;
  }
  DEVICE Neighbours of(float first, float second) const {
    return {smaller(larger(as_pair(first, second), least), most)};
  }
};
#else
struct __align__(8) Neighbours {
  float numbers[2];
  DEVICE float number(int which) const { return numbers[which]; }
  // Those that count.
  DEVICE void become(Neighbours others, bool first, bool second) {
    *this = {first ? others.numbers[0] : numbers[0], second ? others.numbers[1] : numbers[1]};
  }
};
struct Limits {
  float least, most;
  DEVICE explicit Limits(const Geometry& g) {
    const float infinite = BITS_AS_FLOAT(0x7f800000);
    least = g.relu ? 0.f : -infinite, most = g.relu ? BITS_AS_FLOAT(g.relu_max) : infinite;
  }
  DEVICE Neighbours of(float first, float second) const {
    return {smaller(larger(first, least), most), smaller(larger(second, least), most)};
  }
};
#endif

// Where a warp's 16 filters of a tile lie in shared memory on their way.
template <int N> DEVICE Element* staged_outputs() {
  SHARED_MEMORY;
  return (Element*)shared + (threadIdx.x >> 5) * 16 * Block<N>::OUT_PITCH;
}

// A tile's pixels follow each other in memory, from image to image. So a warp moves 64 or 128 bytes of a filter at
// once, which begin where 32 bytes do in a map: `move` is told where its lane's pixels are from an image's first map
// on, and in the tile.
template <int N, int V, typename Move> DEVICE void move_pixels(const Geometry& g, int tile, Move move) {
  constexpr int AT_ONCE = 32 * V, ALIGNED = 32 / sizeof(Element);
  const int begin = pixels_before(g, tile * N), end = pixels_before(g, tile * N + N);
  UNROLL for (int i = 0; i <= N / AT_ONCE; i++) {
    const int pixel = begin / ALIGNED * ALIGNED + i * AT_ONCE + (threadIdx.x & 31) * V;
    const int image = g.out_map.quotient(pixel), in_map = pixel - image * g.out_map;
    const int row = g.out_w.quotient(in_map);
    if (pixel >= begin && pixel < end)
      move(image * g.out_image + in_map, image * g.image_places + row * g.pitch + in_map - row * g.out_w - tile * N);
  }
}

// What is added comes to where the outputs will be.
template <int N, int V> DEVICE void stage_residual(const Block<N>& block, int tile, const Element* residual) {
  Element* const staged = staged_outputs<N>();
  __syncwarp();
  move_pixels<N, V>(block.g, tile, [&](int at, int place) {
    const Weights::Maps maps = block.weights.maps();
    const Element* from[16];
    UNROLL for (int i = 0; i < 16; i++) from[i] = residual + (maps[i] + at);
    if constexpr (V * sizeof(Element) >= 4) {
      UNROLL for (int i = 0; i < 16; i++)
        copy<V * sizeof(Element)>(staged + i * Block<N>::OUT_PITCH + place, from[i], true);
    } else {
      // Too little to be copied asynchronously.
      Element values[16];
      UNROLL for (int i = 0; i < 16; i++) values[i] = *from[i];
      UNROLL for (int i = 0; i < 16; i++) staged[i * Block<N>::OUT_PITCH + place] = values[i];
    }
  });
  commit_copies();
}

// A thread's outputs to where its warp moves them from, of pixels that `counts` says.
template <int N, typename Counts>
DEVICE void stage_outputs(const Geometry& g, const float (&sums)[N / 2], Counts counts) {
  constexpr int PITCH = Block<N>::OUT_PITCH;
  const int lane = threadIdx.x & 31;
  Neighbours* const own = (Neighbours*)(staged_outputs<N>() + (lane >> 2) * PITCH) + (lane & 3);
  const Limits limits(g);
  UNROLL for (int i = 0; i < N / 4; i++) {
    Neighbours* to = own + (i & 1) * 4 * PITCH + (i >> 1) * 4;
    float first = sums[2 * i], second = sums[2 * i + 1];
    if (g.has_residual) first += to->number(0), second += to->number(1);
    const Neighbours found = limits.of(first, second);
    const int pixel = (i >> 1) * 8 + (lane & 3) * 2;
    to->become(found, counts(pixel), counts(pixel + 1));
  }
}

template <int N, int V> DEVICE void write_outputs(const Block<N>& block, int tile, Element* y) {
  const Element* const staged = staged_outputs<N>();
  __syncwarp();
  move_pixels<N, V>(block.g, tile, [&](int at, int place) {
    const Weights::Maps maps = block.weights.maps();
    Pixels<V> values[16];
    UNROLL for (int i = 0; i < 16; i++) values[i] = *(const Pixels<V>*)(staged + i * Block<N>::OUT_PITCH + place);
    UNROLL for (int i = 0; i < 16; i++) *(Pixels<V>*)(y + (maps[i] + at)) = values[i];
  });
}

// Consumers: a warpgroup.
template <int N> struct Consumer {
  const Block<N>& block;
  int number;
  unsigned ring, fragments;

  DEVICE Consumer(const Block<N>& block, int number) : block(block), number(number) {
    ring = shared_address(block.ring) >> 4;
    fragments = lower_half(shared_address(block.weights.units + block.weights.fragments_at), HALF * 16);
  }
  // A chunk's products, from where its inputs are; they are on their way then.
  DEVICE void multiply(int chunk, int slot, float (&sums)[N / 2], float (&low_sums)[PARTS > 1 ? N / 2 : 1]) const {
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

// Where a consumer is in the ring: its next slot, how many chunks were written before, the slot of its last chunk;
// whether any of a tile's chunks has a place that is not in the window of inputs as they are.
struct Progress {
  int slot, number, last;
  bool is_odd;
};

// Products of all chunks of a tile, or of those that are written `again`.
template <int N> DEVICE void multiply_chunks(const Block<N>& block, const Consumer<N>& own, int own_tile, bool again,
                                             Progress& at, float (&sums)[N / 2],
                                             float (&low_sums)[PARTS > 1 ? N / 2 : 1]) {
  for (int chunk = 0; chunk < block.weights.chunks; chunk++) {
    if (PARTS > 1 && again) {
      barrier_sync(FULL_AGAIN + own.number, HANDING);
    } else {
      barrier_sync(FULL + CONSUMERS * at.slot + own.number, HANDING);
      at.last = at.slot, at.slot = block.next(at.slot), at.number++;
    }
    own.multiply(chunk, at.last, sums, low_sums);
    if (PARTS > 1 && !again) {
      at.is_odd = at.is_odd || same_of_all(block.ranges.odd[at.last]) == at.number;
      if (threadIdx.x % 128 == 0)
        block.ranges.asked[at.last] = at.is_odd && chunk + 1 == block.weights.chunks ? 1 + own_tile : 0;
    }
    wait_for_products<0>();
    barrier_arrive(PARTS > 1 && again ? EMPTY_AGAIN : EMPTY + at.last, HANDING);
  }
}

// Sums of both kinds together, scaled, and what is added to them.
template <int N> DEVICE void finish_sums(float (&sums)[N / 2], float (&low_sums)[PARTS > 1 ? N / 2 : 1], int window,
                                         const float (&scales)[2], const float (&first)[2]) {
  UNROLL for (int i = 0; i < N / 2; i++) computed(sums[i]);
  if constexpr (PARTS > 1) {
    UNROLL for (int i = 0; i < N / 2; i++) computed(low_sums[i]);
    const float scale = Ranges<N>::scale(2 * WINDOWS - window);
    UNROLL for (int i = 0; i < N / 2; i++)
      sums[i] = fmaf(fmaf(low_sums[i], 1 / LOW, sums[i]) * scales[i >> 1 & 1], scale, first[i >> 1 & 1]);
  }
}

// A tile's outputs where its warps move them from: at once, or window by window of its pixels.
template <int N> DEVICE void multiply_tile(const Block<N>& block, const Consumer<N>& own, int own_tile, Progress& at,
                                           const float (&scales)[2], const float (&first)[2]) {
  // Windows that pixels are in where not all are in that of inputs as they are, those that are left, and the one that
  // is computed.
  unsigned windows = 0, left = 0;
  int window = WINDOWS;
  at.is_odd = false;
  do {
    float sums[N / 2], low_sums[PARTS > 1 ? N / 2 : 1];
    UNROLL for (int i = 0; i < N / 2; i++) sums[i] = PARTS > 1 ? 0.f : first[i >> 1 & 1];
    if constexpr (PARTS > 1)
      UNROLL for (int i = 0; i < N / 2; i++) low_sums[i] = 0.f;
    multiply_chunks(block, own, own_tile, left, at, sums, low_sums);
    finish_sums<N>(sums, low_sums, window, scales, first);
    wait_for_copies<0>();
    __syncwarp();
    if (PARTS > 1 && at.is_odd) {
      if (!windows) {
        barrier_sync(FULL_AGAIN + own.number, HANDING);
        windows = same_of_all(block.ranges.windows[own.number]);
      }
      const unsigned char* of = block.ranges.window_of + own.number * N;
      stage_outputs<N>(block.g, sums, [&](int pixel) { return of[pixel] == window; });
      left = left ? left & left - 1 : windows & ~(1u << WINDOWS);
      window = first_bit(left);
    } else {
      stage_outputs<N>(block.g, sums, [](int) { return true; });
    }
  } while (PARTS > 1 && left);
}

// Every other tile.
template <int N> DEVICE void consume(const Block<N>& block, const Element* bias, const Element* residual, Element* y) {
  const Geometry& g = block.g;
  const Weights& weights = block.weights;
  const int lane = threadIdx.x & 31, row = (threadIdx.x >> 5 & 3) * 16 + (lane >> 2);
  const Consumer<N> own(block, same_of_all(threadIdx.x >> 7));
  float first[2] = {0.f, 0.f};
  if (g.has_bias) first[0] = widened(bias[weights.filter(row)]), first[1] = widened(bias[weights.filter(row + 8)]);
  const float scales[2] = {weights.scale(row), weights.scale(row + 8)};
  const int chunks = weights.chunks;
  Progress at = {own.number * chunks % block.slots, own.number * chunks, 0, false};
  wait_for_kernel();
  for (int own_tile = own.number;; own_tile += CONSUMERS) {
    const int tile = block.worker + own_tile * g.workers;
    if (tile >= g.tiles) break;
    if (g.has_residual && g.vector == 2)
      stage_residual<N, 2>(block, tile, residual);
    else if (g.has_residual)
      stage_residual<N, 1>(block, tile, residual);
    multiply_tile(block, own, own_tile, at, scales, first);
    if (g.vector == 2)
      write_outputs<N, 2>(block, tile, y);
    else
      write_outputs<N, 1>(block, tile, y);
    // The other's tile lies between.
    at.number += chunks;
    at.slot = at.number % block.slots;
  }
}

template <int N> DEVICE void convolution(const Geometry& g, const Element* __restrict__ x,
                                         const int4* __restrict__ weights, const Element* __restrict__ bias,
                                         const Element* __restrict__ residual, Element* __restrict__ y) {
  SHARED_MEMORY;
  int4* const own = (int4*)shared + Block<N>::OUT_UNITS;
  const int worker = g.k_tiles.divide(blockIdx.x), k_tile = blockIdx.x - worker * g.k_tiles;
  for (int i = threadIdx.x; i < g.stride; i += blockDim.x)
    copy<16>(own + i, weights + (size_t)k_tile * g.stride + i, true);
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
  if (same_of_all(threadIdx.x >> 7) >= CONSUMERS) {
    Role::become_producer();
    wait_for_kernel();
    write_inputs(block, x);
  } else {
    Role::become_consumer();
    consume(block, bias, residual, y);
  }
}

}  // namespace tvm_sparse
