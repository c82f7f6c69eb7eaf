// Half-precision convolutions of which 64 filters share their zeros: one kernel for every shape, weight and tile of
// `plane_cuda`.
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
// A block keeps the weights of its 64 filters in shared memory, and goes on from tile to tile. Two warpgroups write inputs
// of planes, a chunk of them at a time, through a ring of slots; two others have every other tile each, so that one
// multiplies while the other writes its outputs.
//
// Its parameters behind the tensors are the fields of `Geometry` in scheduling/cuda/planes/tiling.py, in that order.

#define FIELDS(X)                                                                                                     \
  /* Tiles of filters and of pixels; blocks that share those of the former. */                                        \
  X(k_tiles) X(k_tiles_m) X(tiles) X(workers)                                                                         \
  /* The line: places of an image, of a row; those of a plane that a tile needs, and in copies of so many pixels. */  \
  X(image_places) X(image_places_m) X(pitch) X(pitch_m) X(staged) X(copies) X(vector)                                 \
  /* Groups of 8 planes that a slot has room for; 16-byte units of a block's shared memory. */                        \
  X(slot_groups) X(shared_units)                                                                                      \
  /* Output: images, its size, elements of a map and of an image. */                                                  \
  X(batch) X(out_h) X(out_w) X(out_w_m) X(out_map) X(out_map_m) X(out_image)                                          \
  /* Input: its size, elements of an image, steps, zeros above and before it. */                                      \
  X(in_h) X(in_w) X(image) X(stride_h) X(stride_w) X(pad_h) X(lead) X(has_bias) X(has_residual) X(relu) X(relu_max)

struct Geometry {
  FIELDS(DECLARED)
};
// Warpgroups that multiply, and those that write inputs; slots of the ring at most.
constexpr int MULTIPLIERS = 2, WRITERS = 2, MAX_SLOTS = 4, WRITING = 128 * WRITERS, HANDING = WRITING + 128;
// Registers of a thread that writes inputs; those that multiply take the rest of 256 for one of each.
constexpr int WRITERS_REGISTERS = 88;
// Barriers of a block: of a slot that is full for one of those who multiply, who may both wait for it, and of an empty one.
constexpr int FULL = 1, EMPTY = FULL + MULTIPLIERS * MAX_SLOTS;
constexpr int FILTERS = 64;
// A tile's weights, in units: how much there is, output channels, where their maps begin, and groups of three each.
constexpr int FILTERS_AT = 1, MAPS_AT = FILTERS_AT + FILTERS / 4, GROUPS_AT = MAPS_AT + FILTERS / 4, GROUP = 3;
// Units of a k-step's weights, and of its first 8 planes.
constexpr int STEP = 128, HALF = 64;

#ifndef TVM_SPARSE_PLANE_PRIMITIVES
#ifdef TVM_SPARSE_BFLOAT16
#define TYPES "f32.bf16.bf16"
#else
#define TYPES "f32.f16.f16"
#endif
// 64 rows of A times N columns of B, both in shared memory.
#define PRODUCT(N, SUMS, A, B)                                                                                          \
  __device__ __forceinline__ void add_product(float (&sums)[SUMS], unsigned long long a, unsigned long long b) {        \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16." TYPES " {" NUMBERS_##SUMS "}, %" #A ", %" #B             \
                 ", 1, 1, 1, 0, 0;"                                                                                     \
                 : SUMS_##SUMS                                                                                          \
                 : "l"(a), "l"(b));                                                                                     \
  }
PRODUCT(64, 32, 32, 33)
PRODUCT(128, 64, 64, 65)
PRODUCT(192, 96, 96, 97)
// What is read where it is inside; zero elsewhere.
__device__ __forceinline__ unsigned read_pair(const Element* from, bool inside) {
  unsigned value = 0;
  asm("{.reg .pred inside; setp.ne.b32 inside, %2, 0; @inside ld.global.nc.b32 %0, [%1];}"
      : "+r"(value)
      : "l"(from), "r"((int)inside));
  return value;
}
__device__ __forceinline__ unsigned read_one(const Element* from, bool inside) {
  unsigned short value = 0;
  asm("{.reg .pred inside; setp.ne.b32 inside, %2, 0; @inside ld.global.nc.b16 %0, [%1];}"
      : "+h"(value)
      : "l"(from), "r"((int)inside));
  return value;
}
__device__ __forceinline__ float part_of(unsigned pair, int which) {
  const unsigned short bits = pair >> 16 * which;
  return widened(*(const Element*)&bits);
}
// Two numbers as elements, the first in the lower half; the smaller and the larger of two of these, NaN where one is.
#ifdef TVM_SPARSE_BFLOAT16
#define PAIR "bf16x2"
#else
#define PAIR "f16x2"
#endif
__device__ __forceinline__ unsigned as_pair(float first, float second) {
  unsigned both;
  asm("cvt.rn." PAIR ".f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
  return both;
}
__device__ __forceinline__ unsigned smaller(unsigned one, unsigned other) {
  asm("min.NaN." PAIR " %0, %0, %1;" : "+r"(one) : "r"(other));
  return one;
}
__device__ __forceinline__ unsigned larger(unsigned one, unsigned other) {
  asm("max.NaN." PAIR " %0, %0, %1;" : "+r"(one) : "r"(other));
  return one;
}
// What all lanes of a warp have, so that the compiler knows.
__device__ __forceinline__ int same_of_all(int value) { return __shfl_sync(0xffffffffu, value, 0); }
#define KERNEL extern "C" __global__ void __launch_bounds__(128 * MULTIPLIERS + WRITING, 1)
#endif

// A tile's weights in shared memory.
struct Weights {
  const int4* units;
  int chunks, chunks_at, steps_at, fragments_at;

  __device__ __forceinline__ explicit Weights(const int4* units) : units(units) {
    const int4 counts = *units;
    chunks = same_of_all(counts.y);
    chunks_at = GROUPS_AT + GROUP * same_of_all(counts.x), steps_at = chunks_at + chunks / 2 + 1;
    fragments_at = steps_at + (same_of_all(counts.z) + 3) / 4;
  }
  // The first group and the first k-step of a chunk.
  __device__ __forceinline__ int2 chunk(int number) const { return ((const int2*)(units + chunks_at))[number]; }
  // Where a k-step's 16 planes are, from a slot's beginning: as the lower half of a descriptor.
  __device__ __forceinline__ unsigned step(int number) const { return ((const unsigned*)(units + steps_at))[number]; }
  __device__ __forceinline__ int filter(int row) const { return ((const int*)(units + FILTERS_AT))[row]; }
  __device__ __forceinline__ int map(int row) const { return ((const int*)(units + MAPS_AT))[row]; }
};

// How many output pixels are before a place of the line.
__device__ __forceinline__ int pixels_before(const Geometry& g, int place) {
  const int image = quotient(place, g.image_places, g.image_places_m), in_image = place - image * g.image_places;
  const int row = quotient(in_image, g.pitch, g.pitch_m), column = in_image - row * g.pitch;
  return image < g.batch ? image * g.out_map + min(row * g.out_w + min(column, g.out_w), g.out_map) : g.batch * g.out_map;
}

// A place of the line, of the first of a lane's pixels.
struct Place {
  int first, in_y, in_x, from;
  bool is_image;

  __device__ __forceinline__ Place(const Geometry& g, int tile_begin, int first) : first(first) {
    const int at = tile_begin + first, image = quotient(at, g.image_places, g.image_places_m);
    const int in_image = at - image * g.image_places, row = quotient(in_image, g.pitch, g.pitch_m);
    in_y = row * g.stride_h - g.pad_h, in_x = (in_image - row * g.pitch) * g.stride_w - g.lead;
    from = image * g.image + in_y * g.in_w + in_x;
    is_image = image < g.batch && first < g.staged;
  }
};

// What 8 planes have there.
template <int V>
struct Copy {
  unsigned values[8];
  int to;

  __device__ __forceinline__ void read(const Geometry& g, const Place& place, const int4* planes, int group,
                                       const Element* x) {
    const int4 four = planes[0], others = planes[1], shift = planes[2];
    const bool inside = place.is_image && (unsigned)(place.in_y + shift.x) < (unsigned)g.in_h &&
                        (unsigned)(place.in_x + shift.y) < (unsigned)g.in_w;
    to = place.first < g.staged ? group * g.staged + place.first : -1;
    const Element* from = x + (place.from + shift.x * g.in_w + shift.y);
    const int channels[8] = {four.x, four.y, four.z, four.w, others.x, others.y, others.z, others.w};
#pragma unroll
    for (int j = 0; j < 8; j++)
      if constexpr (V == 2)
        values[j] = read_pair(from + channels[j], inside);
      else
        values[j] = read_one(from + channels[j], inside);
  }
  __device__ __forceinline__ void write(int4* slot) const {
    if (to < 0) return;
    const unsigned* v = values;
    if constexpr (V == 2) {
      slot[to] = make_int4(lower(v[0], v[1]), lower(v[2], v[3]), lower(v[4], v[5]), lower(v[6], v[7]));
      slot[to + 1] = make_int4(upper(v[0], v[1]), upper(v[2], v[3]), upper(v[4], v[5]), upper(v[6], v[7]));
    } else {
      slot[to] = make_int4(v[0] | v[1] << 16, v[2] | v[3] << 16, v[4] | v[5] << 16, v[6] | v[7] << 16);
    }
  }
  // Of two pairs the first, and the second ones.
  static __device__ __forceinline__ int lower(unsigned one, unsigned other) { return (one & 0xffff) | other << 16; }
  static __device__ __forceinline__ int upper(unsigned one, unsigned other) { return one >> 16 | (other & 0xffff0000u); }
};

// A warp has a share of all copies of 32 * V places of 8 planes, all planes of the same places one after the other; several
// copies at a time, whose reads are all on their way before any is waited for.
template <int V>
__device__ __forceinline__ void write_chunk(const Geometry& g, const int4* planes, int groups, const Element* x,
                                            int tile_begin, int4* slot, int warp) {
  constexpr int AT_ONCE = 4, WARPS = WRITING / 32;
  const int lane = threadIdx.x & 31, all = (g.copies + 31) / 32 * groups, end = all * (warp + 1) / WARPS;
  int number = all * warp / WARPS, block = (unsigned)number / (unsigned)groups, group = number - block * groups;
  Place place(g, tile_begin, (block * 32 + lane) * V);
  for (; number < end; number += AT_ONCE) {
    Copy<V> copies[AT_ONCE];
#pragma unroll
    for (int j = 0; j < AT_ONCE; j++) {
      copies[j].to = -1;
      if (number + j >= end) continue;
      if (group == groups) group = 0, block++, place = Place(g, tile_begin, (block * 32 + lane) * V);
      copies[j].read(g, place, planes + group * GROUP, group, x);
      group++;
    }
#pragma unroll
    for (int j = 0; j < AT_ONCE; j++) copies[j].write(slot);
  }
}

template <int N>
struct Block {
  // A warp's outputs of a tile on their way to memory, 16 filters; units of all warps that multiply.
  static constexpr int OUT_PITCH = N + 8, OUT_UNITS = MULTIPLIERS * FILTERS * OUT_PITCH / 8;

  const Geometry& g;
  Weights weights;
  int4* ring;
  int worker, slots, slot_units, chunks_in_all;

  __device__ __forceinline__ int next(int slot) const { return slot + 1 == slots ? 0 : slot + 1; }
};

// All chunks of all tiles, one after the other.
template <int N>
__device__ __forceinline__ void write_inputs(const Block<N>& block, const Element* x) {
  const Geometry& g = block.g;
  const int warp = same_of_all((threadIdx.x >> 5) - 4 * MULTIPLIERS);
  int number = 0, slot = 0, multiplier = 0;
  for (int tile = block.worker; tile < g.tiles; tile += g.workers, multiplier ^= 1) {
    for (int chunk = 0; chunk < block.weights.chunks; chunk++, number++, slot = block.next(slot)) {
      if (number >= block.slots) meet(EMPTY + slot, HANDING);
      const int first = same_of_all(block.weights.chunk(chunk).x), end = same_of_all(block.weights.chunk(chunk + 1).x);
      const int4* planes = block.weights.units + GROUPS_AT + GROUP * first;
      int4* to = block.ring + slot * block.slot_units;
      if (g.vector == 2)
        write_chunk<2>(g, planes, end - first, x, tile * N, to, warp);
      else
        write_chunk<1>(g, planes, end - first, x, tile * N, to, warp);
      show_tensor_cores();
      pass(FULL + MULTIPLIERS * slot + multiplier, HANDING);
    }
  }
}

// V neighbouring pixels of a filter.
template <int V>
struct __align__(V * sizeof(Element)) Pixels {
  Element at[V];
};

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
    const int image = quotient(pixel, g.out_map, g.out_map_m), in_map = pixel - image * g.out_map;
    const int row = quotient(in_map, g.out_w, g.out_w_m);
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
    const Element* from[16];
#pragma unroll
    for (int i = 0; i < 16; i++) from[i] = residual + (block.weights.map((threadIdx.x >> 5 & 3) * 16 + i) + at);
    if constexpr (V == 2) {
#pragma unroll
      for (int i = 0; i < 16; i++) copy<4>(staged + i * Block<N>::OUT_PITCH + place, from[i], true);
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

template <int N, int V>
__device__ __forceinline__ void write_outputs(const Block<N>& block, const float (&sums)[N / 2], int tile, Element* y) {
  const Geometry& g = block.g;
  constexpr int PITCH = Block<N>::OUT_PITCH;
  const int lane = threadIdx.x & 31;
  Element* const staged = staged_outputs<N>();
  unsigned* const own = (unsigned*)(staged + (lane >> 2) * PITCH) + (lane & 3);
  // Without ReLU infinity.
  const unsigned infinite = as_pair(BITS_AS_FLOAT(0x7f800000), BITS_AS_FLOAT(0x7f800000));
  const float relu_max = BITS_AS_FLOAT(g.relu_max);
  const unsigned least = g.relu ? 0 : infinite | 0x80008000u, most = g.relu ? as_pair(relu_max, relu_max) : infinite;
  wait_for_copies<0>();
  __syncwarp();
#pragma unroll
  for (int i = 0; i < N / 4; i++) {
    unsigned* to = own + (i & 1) * 4 * PITCH + (i >> 1) * 4;
    float first = sums[2 * i], second = sums[2 * i + 1];
    if (g.has_residual) first += part_of(*to, 0), second += part_of(*to, 1);
    *to = smaller(larger(as_pair(first, second), least), most);
  }
  __syncwarp();
  move_pixels<N, V>(g, tile, [&](int at, int place) {
    Pixels<V> values[16];
#pragma unroll
    for (int i = 0; i < 16; i++) values[i] = *(const Pixels<V>*)(staged + i * PITCH + place);
#pragma unroll
    for (int i = 0; i < 16; i++)
      *(Pixels<V>*)(y + (block.weights.map((threadIdx.x >> 5 & 3) * 16 + i) + at)) = values[i];
  });
}

// Every other tile.
template <int N>
__device__ __forceinline__ void multiply(const Block<N>& block, const Element* bias, const Element* residual, Element* y) {
  const Geometry& g = block.g;
  const Weights& weights = block.weights;
  const int multiplier = same_of_all(threadIdx.x >> 7), lane = threadIdx.x & 31;
  const int row = (threadIdx.x >> 5 & 3) * 16 + (lane >> 2);
  float first[2] = {0.f, 0.f};
  if (g.has_bias) first[0] = widened(bias[weights.filter(row)]), first[1] = widened(bias[weights.filter(row + 8)]);
  const unsigned ring = shared_address(block.ring) >> 4;
  const unsigned fragments = lower_half(shared_address(weights.units + weights.fragments_at), HALF * 16);
  int number = multiplier * weights.chunks, slot = number % block.slots;
  wait_for_kernel();
  for (int tile = block.worker + multiplier * g.workers; tile < g.tiles; tile += MULTIPLIERS * g.workers) {
    float sums[N / 2];
#pragma unroll
    for (int i = 0; i < N / 2; i++) sums[i] = first[i >> 1 & 1];
    if (g.has_residual && g.vector == 2)
      stage_residual<N, 2>(block, tile, residual);
    else if (g.has_residual)
      stage_residual<N, 1>(block, tile, residual);
    for (int chunk = 0; chunk < weights.chunks; chunk++, number++, slot = block.next(slot)) {
      meet(FULL + MULTIPLIERS * slot + multiplier, HANDING);
      const unsigned inputs = ring + slot * block.slot_units;
      const int begin = same_of_all(weights.chunk(chunk).y), end = same_of_all(weights.chunk(chunk + 1).y);
      begin_products();
      for (int step = begin; step < end; step++)
        add_product(sums, descriptor(fragments + step * STEP), descriptor(inputs + weights.step(step)));
      commit_products();
      wait_for_products<0>();
      if (number + block.slots < block.chunks_in_all) pass(EMPTY + slot, HANDING);
    }
#pragma unroll
    for (int i = 0; i < N / 2; i++) computed(sums[i]);
    if (g.vector == 2)
      write_outputs<N, 2>(block, sums, tile, y);
    else
      write_outputs<N, 1>(block, sums, tile, y);
    // The other's tile lies between.
    number += weights.chunks;
    slot = number % block.slots;
  }
}

template <int N>
__device__ __forceinline__ void convolution(const Geometry& g, int stride, const Element* __restrict__ x,
                                            const int4* __restrict__ weights, const Element* __restrict__ bias,
                                            const Element* __restrict__ residual, Element* __restrict__ y) {
  SHARED_MEMORY;
  int4* const own = (int4*)shared + Block<N>::OUT_UNITS;
  const int worker = divide(blockIdx.x, g.k_tiles, g.k_tiles_m), k_tile = blockIdx.x - worker * g.k_tiles;
  for (int i = threadIdx.x; i < stride; i += blockDim.x) copy<16>(own + i, weights + (size_t)k_tile * stride + i, true);
  commit_copies();
  wait_for_copies<0>();
  show_tensor_cores();
  __syncthreads();
  launch_next();
  const Weights held(own);
  const int slot_units = g.slot_groups * g.staged, left = g.shared_units - Block<N>::OUT_UNITS - stride;
  const int slots = min(MAX_SLOTS, left / slot_units);
  const int tiles = (g.tiles - worker + g.workers - 1) / g.workers;
  const Block<N> block = {g, held, own + stride, worker, slots, slot_units, tiles * held.chunks};
  if (same_of_all(threadIdx.x >> 7) >= MULTIPLIERS) {
    give_registers<WRITERS_REGISTERS>();
    wait_for_kernel();
    write_inputs(block, x);
  } else {
    take_registers<256 - WRITERS_REGISTERS>();
    multiply(block, bias, residual, y);
  }
}

#define CONVOLUTION(N)                                                                                              \
  KERNEL OF_TYPE(tvm_sparse_planes_##N)(const Element* x, const int4* weights, const Element* bias,                 \
                                        const Element* residual, Element* y, int stride FIELDS(PARAMETER)) {        \
    const Geometry g = {FIELDS(PASSED)};                                                                            \
    convolution<N>(g, stride, x, weights, bias, residual, y);                                                      \
  }
CONVOLUTION(64) CONVOLUTION(128) CONVOLUTION(192)
