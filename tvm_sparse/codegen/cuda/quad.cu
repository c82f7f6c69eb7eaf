// Unstructured convolutions on sparse tensor cores: one kernel for every shape, weight and tile of `quad_cuda`.
//
// A sparse tensor core multiplies with two of every four columns of a matrix, which two each row chooses. Here columns are
// positions, (c, r, s), and rows filters: positions are put in quads of which no filter of a block uses more than two
// (scheduling/cuda/quad/packing.py). Where one weight in five is not zero such quads are found for all, so nothing is
// lost, and half of the work of a dense product is done.
//
// Float32 is computed in three products of float16 (Ootomo & Yokota, Recovering single precision accuracy from Tensor
// Cores, 2022): each number is the sum of a float16 number, its high part, and of what that misses, its low part, 22 bits
// together; `high * high + low of the weight * high + high of the weight * low`. An input's low part is stored 2**11 times
// as large, and multiplied with 2**-11 times the weight, so that it has a float16 number's range of its own.
//
// Weights are scaled by filters, to float16's range. Inputs are taken as they are; where a block finds that the largest of
// a pixel is too large or too small for float16, it begins again with the inputs of such pixels scaled by powers of two.
//
// A block has 64 * 2 * MT filters of N output pixels. Two warpgroups multiply (`wgmma`), 64 * MT filters each, their
// weights in registers; two others write inputs where tensor cores read them: 32 positions (a slab) of all pixels, from
// wherever they are in memory, through a ring of `STAGES` slabs. So reads of memory, and the splitting, happen beside the
// products. What bounds it is shared memory: tensor cores read a slab once for every 64 filters. Where there are few tiles
// several blocks, a cluster, share the slabs of one.
//
// Its integers are declared in scheduling/cuda/quad/kernels.py.

#include "device/kernel.cuh"
#include "device/cluster.cuh"
#include "device/epilogue.cuh"
#include "device/pipeline.cuh"
#include "device/split.cuh"
#include "device/wgmma.cuh"
constexpr int max_of(int one, int other) { return one > other ? one : other; }

// Positions of a slab; slabs of the ring; warpgroups that multiply and that write inputs.
constexpr int SLAB = 32, STAGES = 4, MULTIPLIERS = 2, WRITERS = 2;
// Registers of a thread that writes inputs; those that multiply take the rest of 256 for one of each.
constexpr int WRITERS_REGISTERS = 72;
// Positions of a block at most.
constexpr int MAX_POSITIONS = 8192;
// As bits: float16's infinity and 2**-12, and float32's largest number.
constexpr unsigned INFINITE_HALF = 0x7c00, SMALL_HALF = 0x0c00;
constexpr float MOST = 3.402823466e38f;
// Threads that multiply, those that hand over one slab, and all.
constexpr int MULTIPLYING = 128 * MULTIPLIERS, HANDING = MULTIPLYING + 128, THREADS = MULTIPLYING + 128 * WRITERS;
// Barriers of a block: of all, of a slab that is full, of one that is empty, and of those who multiply.
constexpr int ALL = 0, FULL = 1, EMPTY = FULL + STAGES, MULTIPLIED = EMPTY + STAGES;

#ifndef TVM_SPARSE_EMULATED
// 64 rows of A, of which registers hold the chosen columns and `choice` which they are, times N columns of B in shared
// memory; the first two lanes of each four say the choices.
#define PRODUCT(N, SUMS, A0, A1, A2, A3, B, CHOICE)                                                                   \
  __device__ __forceinline__ void add_product(float (&sums)[SUMS], const unsigned (&a)[4], unsigned long long b,      \
                                              unsigned choice) {                                                      \
    asm volatile("wgmma.mma_async.sp.sync.aligned.m64n" #N "k32.f32.f16.f16 {" NUMBERS_##SUMS "}, {%" #A0 ", %" #A1    \
                 ", %" #A2 ", %" #A3 "}, %" #B ", %" #CHOICE ", 0, 1, 1, 1, 0;"                                        \
                 : SUMS_##SUMS                                                                                        \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(choice));                                  \
  }
PRODUCT(64, 32, 32, 33, 34, 35, 36, 37)
PRODUCT(96, 48, 48, 49, 50, 51, 52, 53)
PRODUCT(128, 64, 64, 65, 66, 67, 68, 69)
// Two numbers as float16, the first in the lower half, and what they are.
__device__ __forceinline__ unsigned as_half(float first, float second) {
  unsigned both;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
  return both;
}
__device__ __forceinline__ float2 of_halves(unsigned both) {
  float2 values;
  asm("{.reg .b16 first, second; mov.b32 {first, second}, %2; cvt.f32.f16 %0, first; cvt.f32.f16 %1, second;}"
      : "=f"(values.x), "=f"(values.y)
      : "r"(both));
  return values;
}
// 2**-11 times both.
__device__ __forceinline__ unsigned lowered(unsigned both) {
  asm("mul.rn.f16x2 %0, %0, %1;" : "+r"(both) : "r"(0x10001000));
  return both;
}
// The larger of two magnitudes, each for itself; NaN is the largest.
__device__ __forceinline__ unsigned larger(unsigned one, unsigned other) { return __vmaxu2(one, other & 0x7fff7fff); }
#endif

// Where a position is, bytes from a pixel's place, and its tap as a bit.
struct Position {
  int offset;
  unsigned tap;
};
struct __align__(16) TwoPositions {
  Position of[2];
};

// What both sides of a block know. A slab's weights are 16-byte units: for each 64 filters two fragments of a thread, of
// high and low parts, then eight bytes of choices for each four threads, then its positions. In front of a tile's slabs
// is as much again for how many there are and, behind the first unit, what each filter's sums are multiplied with.
template <int MT, int N>
struct Block {
  static constexpr int TILES = MULTIPLIERS * MT, FILTERS = 64 * TILES, PART = SLAB * N * 2, BUFFER = 2 * PART;
  static constexpr int CHOICES_AT = 256 * TILES, POSITIONS_AT = CHOICES_AT + 16 * TILES;
  // Behind the ring and positions, or sums on their way out: what is found out about inputs.
  static constexpr int FOUND_AT = max_of(STAGES * BUFFER + 8 * MAX_POSITIONS, 4 * FILTERS * (N + 8));
  // 32 pixels.
  static constexpr int GROUPS = N / 32;

  const int4* weights;
  // Blocks begin with different slabs: where all read the same weights at a time, they wait for each other.
  int stride, slabs, first_slab, tile;
  // Its first filter, and how many there are; which part of the slabs this block has.
  int filter, filters, part;
  char* ring;
  Position* positions;
  const float* factors;
  // Of each pixel: twice the bits of its largest input as float16, and whether it is not zero; of those that are finite the
  // largest as bits of float32. Then whether any is out of range.
  unsigned *found, *finite, *is_any;

  __device__ __forceinline__ int wrapped(int slab) const { return slab < slabs ? slab : slab - slabs; }
};

// Where an output pixel is in an image's first map of all images, or -1.
__device__ __forceinline__ int place_of(const Geometry& g, int pixel) {
  const int image = g.out_map.quotient(pixel);
  return pixel < g.pixels ? image * g.out_image + pixel - image * g.out_map : -1;
}

// A block's residuals, which its end would wait for: each eighth pixel of a filter stands for 32 bytes.
template <int MT, int N>
__device__ __forceinline__ void prefetch_residual(const Geometry& g, const Block<MT, N>& block, const float* residual,
                                                  int writer) {
  using B = Block<MT, N>;
  constexpr int LANES = N / 8, ROWS = 128 / LANES;
  const int thread = threadIdx.x & 127, row = thread / LANES, at = place_of(g, block.tile * N + thread % LANES * 8);
  if (at < 0 || row >= ROWS) return;
  residual += block.filter * g.out_map + at;
  for (int filter = writer * ROWS + row; filter < block.filters; filter += WRITERS * ROWS)
    prefetch(residual + filter * g.out_map);
}

// Where a writer's pixels are, and which taps are inside of the image.
template <int N>
struct Pixels {
  // Of a block's images, and in bytes from there.
  const char* images;
  int from[N / 32];
  unsigned inside[N / 32];

  __device__ __forceinline__ float input(int i, Position at) const {
    float value = 0.f;
    if (inside[i] & at.tap) value = *(const float*)(images + (from[i] + at.offset));
    return value;
  }
};

template <int MT, int N>
__device__ __forceinline__ Pixels<N> pixels_of(const Geometry& g, const Block<MT, N>& block, const float* x) {
  Pixels<N> pixels;
  const int lane = threadIdx.x & 31, first_image = g.out_map.quotient(block.tile * N);
  pixels.images = (const char*)(x + (size_t)first_image * g.image);
#pragma unroll
  for (int i = 0; i < N / 32; i++) {
    const int pixel = block.tile * N + i * 32 + lane;
    const int image = g.out_map.quotient(pixel), in_map = pixel - image * g.out_map;
    const int out_y = g.out_w.quotient(in_map), out_x = in_map - out_y * g.out_w;
    const int in_y = out_y * g.stride_h - g.pad_h, in_x = out_x * g.stride_w - g.pad_w;
    pixels.from[i] = 4 * ((image - first_image) * g.image + in_y * g.in_w + in_x);
    pixels.inside[i] = 0;
    for (int r = 0; r < g.r; r++)
      for (int s = 0; s < g.s; s++) {
        const int row = in_y + r * g.dilation_h, column = in_x + s * g.dilation_w;
        if (pixel < g.pixels && (unsigned)row < (unsigned)g.in_h && (unsigned)column < (unsigned)g.in_w)
          pixels.inside[i] |= 1u << (r * g.s + s);
      }
  }
  return pixels;
}

// Every second slab: inputs of eight positions and 32 pixels at a time, their high parts and their low ones. `largest` of
// a thread's pixels are those of even and odd positions, as float16, and `bits` what any of them has.
template <int MT, int N>
__device__ __forceinline__ void write_inputs(const Block<MT, N>& block, const Pixels<N>& pixels,
                                             const float (&scales)[N / 32], int writer, unsigned (&largest)[N / 32],
                                             unsigned (&bits)[N / 32]) {
  using B = Block<MT, N>;
  // A warp's eight positions of a slab are read once for all pixels: reads of shared memory are what all wait for. All
  // inputs are on their way before any is written.
  const int warp = threadIdx.x >> 5 & 3, lane = threadIdx.x & 31;
#pragma unroll
  for (int i = 0; i < B::GROUPS; i++) largest[i] = bits[i] = 0;
  for (int number = writer, slab = block.wrapped(block.first_slab + writer); number < block.slabs;
       number += WRITERS, slab = block.wrapped(slab + WRITERS)) {
    const int slot = number % STAGES;
    const TwoPositions* const two = (const TwoPositions*)(block.positions + slab * SLAB + warp * 8);
    char* const to = block.ring + slot * B::BUFFER + (warp * N + lane) * 16;
    float values[B::GROUPS][8];
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      const TwoPositions at = two[j / 2];
#pragma unroll
      for (int i = 0; i < B::GROUPS; i++) {
        values[i][j] = pixels.input(i, at.of[0]);
        values[i][j + 1] = pixels.input(i, at.of[1]);
      }
    }
    if (number >= STAGES) barrier_sync(EMPTY + slot, HANDING);
#pragma unroll
    for (int i = 0; i < B::GROUPS; i++) {
      unsigned high[4], low[4];
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const float one = values[i][2 * j] * scales[i], other = values[i][2 * j + 1] * scales[i];
        high[j] = as_half(one, other);
        largest[i] = larger(largest[i], high[j]);
        bits[i] |= FLOAT_AS_BITS(one) | FLOAT_AS_BITS(other);
        const float2 kept = of_halves(high[j]);
        low[j] = as_half((one - kept.x) * LOW, (other - kept.y) * LOW);
      }
      *(uint4*)(to + i * 512) = make_uint4(high[0], high[1], high[2], high[3]);
      *(uint4*)(to + i * 512 + B::PART) = make_uint4(low[0], low[1], low[2], low[3]);
    }
    show_tensor_cores();
    barrier_arrive(FULL + slot, HANDING);
  }
}

// The largest finite inputs of a thread's pixels in every second slab.
template <int MT, int N>
__device__ __forceinline__ void find_largest(const Block<MT, N>& block, const Pixels<N>& pixels, int writer) {
#pragma unroll
  for (int i = 0; i < N / 32; i++) {
    float largest = 0.f;
    for (int at = (threadIdx.x >> 5 & 3) + 4 * writer; at < block.slabs * SLAB; at += 4 * WRITERS) {
      const float value = fabsf(pixels.input(i, block.positions[at]));
      if (value > largest && value <= MOST) largest = value;
    }
    atomicMax(block.finite + i * 32 + (threadIdx.x & 31), FLOAT_AS_BITS(largest));
  }
}

// Whether a pixel's largest input is infinite as float16, or so small that low parts have too few bits.
__device__ __forceinline__ bool is_out_of_range(unsigned found) {
  return found != 0 && (found >= 2 * INFINITE_HALF || found < 2 * SMALL_HALF);
}

// The bits of a power of two's exponent, which brings the largest input of a pixel that is out of range to 2**14 up to
// 2**15; of others 1.
template <int MT, int N>
__device__ __forceinline__ int exponent_of(const Block<MT, N>& block, int pixel) {
  const unsigned largest = block.finite[pixel];
  return largest == 0 || !is_out_of_range(block.found[pixel]) ? 127 : 268 - max((int)(largest >> 23), 15);
}
__device__ __forceinline__ float power(int exponent) { return BITS_AS_FLOAT(exponent << 23); }

// The weights of 64 filters in a slab.
struct Weights {
  unsigned high[4], low[4], choice;

  __device__ __forceinline__ void fetch(const int4* fragments, const unsigned* choices) {
    read_early(high, fragments), read_early(low, fragments + 128);
    choice = *choices;
  }
};

// Their high parts for inputs' low ones.
struct Lowered {
  unsigned high[4];

  __device__ __forceinline__ void compute(Weights& of) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
      computed(of.high[j]), computed(of.low[j]);
      high[j] = lowered(of.high[j]);
      computed(high[j]);
    }
    computed(of.choice);
  }
};

// Products come in the order of slabs, and of the MT times 64 filters in each: two in a row have different registers.
// Weights are asked for three products ahead, as they arrive at ten bytes a cycle.
template <int MT, int N>
__device__ __forceinline__ void multiply(const Block<MT, N>& block, float (&sums)[MT][N / 2]) {
  using B = Block<MT, N>;
  constexpr int FETCHED = 4;
  const int first = threadIdx.x >> 7, thread = threadIdx.x & 127, products = MT * block.slabs;
  int slab = block.first_slab;
  const int4* fragments = block.weights + slab * block.stride + MT * first * 256 + thread;
  // From there, in bytes.
  const int choices_at = 16 * (B::CHOICES_AT + MT * first * (16 - 256) - thread) + thread / 4 * 8 + thread % 2 * 4;
  Weights weights[FETCHED];
  Lowered lowered[2];
#pragma unroll
  for (int m = 0; m < MT; m++)
#pragma unroll
    for (int i = 0; i < N / 2; i++) sums[m][i] = 0.f;
  auto fetch = [&](int number, int m, Weights& to) {
    if (number < products) to.fetch(fragments + m * 256, (const unsigned*)((const char*)fragments + choices_at) + m * 64);
    if (m < MT - 1) return;
    fragments += block.stride;
    if (++slab == block.slabs) slab = 0, fragments -= block.slabs * block.stride;
  };
#pragma unroll
  for (int i = 0; i < FETCHED - 1; i++) fetch(i, i % MT, weights[i]);
  lowered[0].compute(weights[0]);
  wait_for_kernel();
  const unsigned ring = lower_half(shared_address(block.ring), N * 16);
  int slot = 0;
  for (int start = 0; start < products; start += FETCHED) {
#pragma unroll
    for (int i = 0; i < FETCHED; i++) {
      const int number = start + i, m = i % MT, ahead = i + FETCHED - 1;
      if (m == 0 && number >= products) break;
      const Weights& own = weights[i];
      if (m == 0) barrier_sync(FULL + slot, HANDING);
      const unsigned high_at = ring + slot * (B::BUFFER >> 4), low_at = high_at + (B::PART >> 4);
      begin_products();
      add_product(sums[m], lowered[i % 2].high, descriptor(low_at), own.choice);
      add_product(sums[m], own.low, descriptor(high_at), own.choice);
      add_product(sums[m], own.high, descriptor(high_at), own.choice);
      commit_products();
      wait_for_products<1>();
      // The one before is complete, its weights' place is free, and with a slab's first product all of the slab before.
      if (m == 0 && number > 0 && number + (STAGES - 1) * MT < products)
        barrier_arrive(EMPTY + (slot + STAGES - 1) % STAGES, HANDING);
      if (m == MT - 1) slot = (slot + 1) % STAGES;
      fetch(start + ahead, ahead % MT, weights[ahead % FETCHED]);
      if (number + 1 < products) lowered[(i + 1) % 2].compute(weights[(i + 1) % FETCHED]);
    }
  }
  wait_for_products<0>();
#pragma unroll
  for (int m = 0; m < MT; m++)
#pragma unroll
    for (int i = 0; i < N / 2; i++) computed(sums[m][i]);
}

// Sums by way of shared memory, so that all lanes of a warp write pixels of one filter. Blocks that share a tile's slabs
// write some of its filters each.
template <int MT, int N>
__device__ __forceinline__ void write_sums(const Geometry& g, const Block<MT, N>& block, float (&sums)[MT][N / 2],
                                           const float* bias, const float* residual, float* y) {
  using B = Block<MT, N>;
  constexpr int PITCH = N + 8, ROWS = 8;
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  float* const staged = (float*)block.ring;
  const bool is_scaled = *block.is_any;
#pragma unroll
  for (int m = 0; m < MT; m++) {
    const int row = (MT * (warp >> 2) + m) * 64 + (warp & 3) * 16 + (lane >> 2);
    const float factors[2] = {block.factors[row], block.factors[row + 8]};
#pragma unroll
    for (int i = 0; i < N / 4; i++) {
      const int pixel = (i >> 1) * 8 + (lane & 3) * 2;
      float one = sums[m][2 * i] * factors[i & 1], other = sums[m][2 * i + 1] * factors[i & 1];
      if (is_scaled) one *= power(254 - exponent_of(block, pixel)), other *= power(254 - exponent_of(block, pixel + 1));
      *(float2*)(staged + (row + 8 * (i & 1)) * PITCH + pixel) = make_float2(one, other);
    }
  }
  if (g.parts > 1)
    cluster_sync();
  else
    barrier_sync(MULTIPLIED, MULTIPLYING);
  int at[B::GROUPS];
#pragma unroll
  for (int i = 0; i < B::GROUPS; i++) at[i] = place_of(g, block.tile * N + i * 32 + lane);
  constexpr int AT_ONCE = MULTIPLYING / 32 * ROWS;
  for (int first = block.part * AT_ONCE + warp * ROWS; first < block.filters; first += g.parts * AT_ONCE) {
    const int filter = block.filter + first, rows = block.filters - first;
    float total[ROWS][B::GROUPS];
#pragma unroll
    for (int row = 0; row < ROWS; row++) {
      const float bias_of = g.has_bias && row < rows ? bias[filter + row] : 0.f;
#pragma unroll
      for (int i = 0; i < B::GROUPS; i++) {
        total[row][i] = bias_of;
        if (g.has_residual && at[i] >= 0 && row < rows) total[row][i] += residual[at[i] + (filter + row) * g.out_map];
      }
    }
    for (int other = 0; other < g.parts; other++)
#pragma unroll
      for (int row = 0; row < ROWS; row++)
#pragma unroll
        for (int i = 0; i < B::GROUPS; i++) {
          const float* from = staged + (first + row) * PITCH + i * 32 + lane;
          total[row][i] += g.parts > 1 ? remote_load(from, other) : *from;
        }
#pragma unroll
    for (int row = 0; row < ROWS; row++)
#pragma unroll
      for (int i = 0; i < B::GROUPS; i++)
        if (at[i] >= 0 && row < rows) y[at[i] + (filter + row) * g.out_map] = with_relu(g, total[row][i]);
  }
}

template <int MT, int N>
__device__ __forceinline__ void convolution(const Geometry& g, const float* __restrict__ x,
                                            const int4* __restrict__ weights, const float* __restrict__ bias,
                                            const float* __restrict__ residual, float* __restrict__ y) {
  SHARED_MEMORY;
  using B = Block<MT, N>;
  B block;
  const int place = g.parts.quotient(blockIdx.x), part = block.part = blockIdx.x - place * g.parts;
  block.tile = g.k_tiles.quotient(place);
  const int k_tile = place - block.tile * g.k_tiles, group = g.group_tiles.divide(k_tile);
  const int in_group = (k_tile - group * g.group_tiles) * B::FILTERS;
  block.filter = group * g.group_filters + in_group, block.filters = min(B::FILTERS, g.group_filters - in_group);
  block.weights = weights + (size_t)k_tile * g.tile_rows * g.stride, block.stride = g.stride;
  block.factors = (const float*)(block.weights + 1);
  const unsigned count = block.weights->x, begin = count * part / g.parts;
  block.weights += (size_t)(1 + begin) * g.stride, block.slabs = count * (part + 1) / g.parts - begin;
  block.first_slab = (unsigned)block.tile % (unsigned)max(block.slabs, 1);
  block.ring = (char*)shared, block.positions = (Position*)(block.ring + STAGES * B::BUFFER);
  for (int i = threadIdx.x; i < block.slabs * (SLAB / 2); i += blockDim.x)
    ((int4*)block.positions)[i] = block.weights[(size_t)(i / (SLAB / 2)) * g.stride + B::POSITIONS_AT + i % (SLAB / 2)];
  block.found = (unsigned*)(block.ring + B::FOUND_AT), block.finite = block.found + N, block.is_any = block.finite + N;
  if (threadIdx.x <= 2 * N) block.found[threadIdx.x] = 0;
  __syncthreads();
  launch_next();
  const int warpgroup = threadIdx.x >> 7;
  if (warpgroup >= MULTIPLIERS) {
    give_registers<WRITERS_REGISTERS>();
    const int writer = warpgroup - MULTIPLIERS;
    const Pixels<N> pixels = pixels_of(g, block, x + group * g.group_elements);
    wait_for_kernel();
    if (g.has_residual && part == 0) prefetch_residual(g, block, residual, writer);
    float scales[N / 32];
    unsigned largest[N / 32], bits[N / 32];
#pragma unroll
    for (int i = 0; i < N / 32; i++) scales[i] = 1.f;
    write_inputs(block, pixels, scales, writer, largest, bits);
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int i = 0; i < N / 32; i++)
      atomicMax(block.found + i * 32 + lane, 2 * max(largest[i] & 0xffff, largest[i] >> 16) + (bits[i] << 1 != 0));
    barrier_sync(ALL, THREADS), barrier_sync(ALL, THREADS);
    if (*block.is_any) {
      find_largest(block, pixels, writer);
      barrier_sync(ALL, THREADS);
#pragma unroll
      for (int i = 0; i < N / 32; i++) scales[i] = power(exponent_of(block, i * 32 + lane));
      write_inputs(block, pixels, scales, writer, largest, bits);
      barrier_sync(ALL, THREADS);
    }
    if (g.parts > 1) cluster_sync();
  } else {
    take_registers<256 - WRITERS_REGISTERS>();
    float sums[MT][N / 2];
    multiply(block, sums);
    barrier_sync(ALL, THREADS);
    if (threadIdx.x < N && is_out_of_range(block.found[threadIdx.x])) *block.is_any = 1;
    barrier_sync(ALL, THREADS);
    if (*block.is_any) {
      barrier_sync(ALL, THREADS);
      multiply(block, sums);
      barrier_sync(ALL, THREADS);
    }
    write_sums(g, block, sums, bias, residual, y);
  }
  // Until nobody reads sums of this block any more.
  if (g.parts > 1) cluster_sync();
}

#define CONVOLUTION(MT, N) KERNEL(THREADS, 1, tvm_sparse_quad_##MT##_##N, convolution<MT, N>)
CONVOLUTION(1, 64) CONVOLUTION(1, 96) CONVOLUTION(1, 128) CONVOLUTION(2, 64) CONVOLUTION(2, 96)
