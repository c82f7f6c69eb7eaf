// Unstructured convolutions on sparse tensor cores: one kernel for every shape, weight and tile of `quad_cuda`.
//
// A sparse tensor core multiplies with two of every four columns of a matrix, which two each row chooses. Here columns
// are positions, (c, r, s), and rows filters: positions are put in quads of which no filter of a block uses more than
// two (scheduling/cuda/quad/packing.py). Where one weight in five is not zero such quads are found for all, so nothing
// is lost, and half of the work of a dense product is done.
//
// Float32 is computed in three products of float16 (Ootomo & Yokota, Recovering single precision accuracy from Tensor
// Cores, 2022): each number is the sum of a float16 number, its high part, and of what that misses, its low part, 22
// bits together; `high * high + low of the weight * high + high of the weight * low`. An input's low part is stored
// 2**11 times as large, and multiplied with 2**-11 times the weight, so that it has a float16 number's range of its
// own.
//
// Tensors of float16 and bfloat16 are multiplied as they are, in one product. Where float32 may be rounded to TF32, which
// has as many bits as float16, high parts do alone, in one product too.
//
// In float32 weights are scaled by filters, to float16's range. Inputs are taken as they are; where a block finds that the largest
// of a pixel is too large or too small for float16, it begins again with the inputs of such pixels scaled by powers of
// two.
//
// A block has 64 * 2 * MT filters of N output pixels. Two warpgroups multiply (`wgmma`), 64 * MT filters each, their
// weights in registers; two others write inputs where tensor cores read them: 32 positions (a k-block) of all pixels,
// from wherever they are in memory, through a ring of `STAGES` k-blocks. So reads of memory, and the splitting, happen
// beside the products. What bounds it is shared memory: tensor cores read a k-block once for every 64 filters. Where
// there are few tiles several blocks, a cluster, share the k-blocks of one.
//
// Its integers are declared in scheduling/cuda/quad/kernels.py.

#include "device/kernel.cuh"
#include "device/cluster.cuh"
#include "device/epilogue.cuh"
#include "device/pipeline.cuh"
#include "device/split.cuh"
#include "device/wgmma.cuh"

namespace tvm_sparse {

// Whether numbers are float32, of which not all are in float16's range.
constexpr bool SCALES = sizeof(Element) == 4;
// Numbers that one of a tensor is the sum of, which tensor cores multiply; as bits of float16, below what largest input
// of a pixel too many bits of the others are lost: 2**-12, without low parts 2**-6.
#ifdef TVM_SPARSE_TF32
constexpr int NUMBERS = 1;
constexpr unsigned SMALL_HALF = 0x2400;
#else
constexpr int NUMBERS = SCALES ? 2 : 1;
constexpr unsigned SMALL_HALF = 0x0c00;
#endif
// Positions of a k-block; k-blocks of the ring; warpgroups that consume and that produce.
constexpr int K_BLOCK = 32, STAGES = NUMBERS > 1 ? 4 : 6, CONSUMERS = 2, PRODUCERS = 2;
using Role = Roles<CONSUMERS, PRODUCERS, 72>;
// Positions of a block at most.
constexpr int MAX_POSITIONS = 8192;
// As bits float16's infinity, and float32's largest number.
constexpr unsigned INFINITE_HALF = 0x7c00;
constexpr float MOST = 3.402823466e38f;
// Threads that consume, those that hand over one k-block, and all.
constexpr int CONSUMING = Role::CONSUMING, HANDING = CONSUMING + 128, THREADS = Role::THREADS;
// Barriers of a block: of all, of a k-block that is full, of one that is empty, and of consumers.
constexpr int ALL = 0, FULL = 1, EMPTY = FULL + STAGES, MULTIPLIED = EMPTY + STAGES;
static_assert(MULTIPLIED < BARRIERS);

#ifdef TVM_SPARSE_HALF
typedef unsigned short Input;
#else
typedef float Input;
#endif
#ifdef TVM_SPARSE_BFLOAT16
#define TYPES "f32.bf16.bf16"
#else
#define TYPES "f32.f16.f16"
#endif

#ifndef TVM_SPARSE_EMULATED
// 64 rows of A, of which registers hold the chosen columns and `choice` which they are, times N columns of B in shared
// memory; the first two lanes of each four say the choices.
#define PRODUCT(N, SUMS, CHOICE)                                                                                \
  DEVICE void add_product(float (&sums)[SUMS], const unsigned (&a)[4], unsigned long long b, unsigned choice) { \
    WGMMA(".sp.sync.aligned.m64n" #N "k32." TYPES, SUMS, A_AND_B_##SUMS ", %" #CHOICE ", 0, 1, 1, 1, 0",        \
          IN_REGISTERS(a), "l"(b), "r"(choice));                                                                \
  }
PRODUCT(64, 32, 37)
PRODUCT(96, 48, 53)
PRODUCT(128, 64, 69)
// 2**-11 times both.
DEVICE unsigned lowered(unsigned both) {
  asm("mul.rn.f16x2 %0, %0, %1;" : "+r"(both) : "r"(0x10001000));
  return both;
}
// The larger of two magnitudes, each for itself; NaN is the largest.
DEVICE unsigned larger(unsigned one, unsigned other) { return __vmaxu2(one, other & 0x7fff7fff); }
// 2 bytes where they are inside, on their way from here on, however much later they are needed; zero elsewhere.
DEVICE unsigned short read_early(const void* at, bool inside) {
  unsigned short value = 0;
  asm volatile("{.reg .pred inside; setp.ne.b32 inside, %2, 0; @inside ld.global.nc.b16 %0, [%1];}"
               : "+h"(value)
               : "l"(at), "r"((int)inside));
  return value;
}
#endif

// Where a position is, bytes from a pixel's place, and its tap as a bit.
struct Position {
  int offset;
  unsigned tap;
};
struct __align__(16) TwoPositions {
  Position of[2];
};

// What both sides of a block know. A k-block's weights are 16-byte units: for each 64 filters a fragment of a thread, in
// float32 two, of high and low parts, then eight bytes of choices for each four threads, then its positions. In front of a
// tile's k-blocks is as much again for how many there are and, behind the first unit, what each filter's sums are
// multiplied with.
template <int MT, int N> struct Block {
  static constexpr int TILES = CONSUMERS * MT, FILTERS = 64 * TILES, PART = K_BLOCK * N * 2, BUFFER = NUMBERS * PART;
  static constexpr int TILE_UNITS = 128 * NUMBERS, CHOICES_AT = TILE_UNITS * TILES, POSITIONS_AT = CHOICES_AT + 16 * TILES;
  // Behind the ring and positions, or sums on their way out: what is found out about inputs.
  static constexpr int FOUND_AT = largest_of(STAGES * BUFFER + 8 * MAX_POSITIONS, 4 * FILTERS * (N + 8));
  // 32 pixels.
  static constexpr int GROUPS = N / 32;

  const int4* weights;
  // Blocks begin with different k-blocks: where all read the same weights at a time, they wait for each other.
  int stride, k_blocks, first_k_block, tile;
  // Its group, its first filter and how many there are; which part of the k-blocks this block has.
  int group, filter, filters, part;
  char* ring;
  Position* positions;
  const float* factors;
  // Of each pixel: twice the bits of its largest input as float16, and whether it is not zero; of those that are finite
  // the largest as bits of float32. Then whether any is out of range.
  unsigned *found, *finite, *is_any;

  DEVICE int wrapped(int k_block) const { return k_block < k_blocks ? k_block : k_block - k_blocks; }
};

// Where an output pixel is in an image's first map of all images, or -1.
DEVICE int place_of(const Geometry& g, int pixel) {
  const int image = g.out_map.quotient(pixel);
  return pixel < g.pixels ? image * g.out_image + pixel - image * g.out_map : -1;
}

// A block's residuals, which its end would wait for: some pixels of a filter stand for 32 bytes each.
template <int MT, int N>
DEVICE void prefetch_residual(const Geometry& g, const Block<MT, N>& block, const Element* residual, int producer) {
  constexpr int EACH = 32 / sizeof(Element), LANES = N / EACH, ROWS = 128 / LANES;
  const int thread = threadIdx.x & 127, row = thread / LANES, at = place_of(g, block.tile * N + thread % LANES * EACH);
  if (at < 0 || row >= ROWS) return;
  residual += block.filter * g.out_map + at;
  for (int filter = producer * ROWS + row; filter < block.filters; filter += PRODUCERS * ROWS)
    prefetch(residual + filter * g.out_map);
}

// The map of all volumes that the first tap of an output image reads, though it may be none: its place in its volume.
struct FirstMap {
  int map, place;

  DEVICE FirstMap(const Geometry& g, int image) {
    const int volume = g.outputs.quotient(image);
    place = (image - volume * g.outputs) * g.stride_d - g.pad_d, map = volume * g.in_d + place;
  }
};

// Where a producer's pixels are, and which taps are inside of the volume.
template <int N> struct Pixels {
  // Of a block's images, and in bytes from there.
  const char* images;
  int from[N / 32];
  unsigned inside[N / 32];

  DEVICE Input input(int i, Position at) const {
    if constexpr (!SCALES) return read_early(images + (from[i] + at.offset), inside[i] & at.tap);
    // Reckoned where it is inside only: the address of one elsewhere would take registers.
    float value = 0.f;
    if (inside[i] & at.tap) value = *(const float*)(images + (from[i] + at.offset));
    return value;
  }
};

template <int MT, int N> DEVICE Pixels<N> pixels_of(const Geometry& g, const Block<MT, N>& block, const Element* x) {
  Pixels<N> pixels;
  const int lane = threadIdx.x & 31, first_map = FirstMap(g, g.out_map.quotient(block.tile * N)).map;
  pixels.images = (const char*)(x + (long long)first_map * g.image);
  UNROLL for (int i = 0; i < N / 32; i++) {
    const int pixel = block.tile * N + i * 32 + lane;
    const int image = g.out_map.quotient(pixel), in_map = pixel - image * g.out_map;
    const int out_y = g.out_w.quotient(in_map), out_x = in_map - out_y * g.out_w;
    const int in_y = out_y * g.stride_h - g.pad_h, in_x = out_x * g.stride_w - g.pad_w;
    const FirstMap first(g, image);
    pixels.from[i] = (int)sizeof(Element) * ((first.map - first_map) * g.image + in_y * g.in_w + in_x);
    pixels.inside[i] = 0;
    unsigned tap = 1;
    for (int t = 0; t < g.t; t++)
      for (int r = 0; r < g.r; r++)
        for (int s = 0; s < g.s; s++, tap <<= 1) {
          const int row = in_y + r * g.dilation_h, column = in_x + s * g.dilation_w;
          if (pixel < g.pixels && (unsigned)(first.place + t * g.dilation_d) < (unsigned)g.in_d &&
              (unsigned)row < (unsigned)g.in_h && (unsigned)column < (unsigned)g.in_w)
            pixels.inside[i] |= tap;
        }
  }
  return pixels;
}

// Every second k-block: inputs of eight positions and 32 pixels at a time, of float32 their high parts and their low
// ones. `largest` of a thread's pixels are those of even and odd positions, as float16, and `bits` what any of them has.
template <int MT, int N> DEVICE void write_inputs(const Block<MT, N>& block, const Pixels<N>& pixels,
                                                  const float (&scales)[N / 32], int producer,
                                                  unsigned (&largest)[N / 32], unsigned (&bits)[N / 32]) {
  using B = Block<MT, N>;
  // A warp's eight positions of a k-block are read once for all pixels: reads of shared memory are what all wait for.
  // All inputs are on their way before any is written.
  const int warp = threadIdx.x >> 5 & 3, lane = threadIdx.x & 31;
  UNROLL for (int i = 0; i < B::GROUPS; i++) largest[i] = bits[i] = 0;
  for (int number = producer, k_block = block.wrapped(block.first_k_block + producer); number < block.k_blocks;
       number += PRODUCERS, k_block = block.wrapped(k_block + PRODUCERS)) {
    const int slot = number % STAGES;
    const TwoPositions* const two = (const TwoPositions*)(block.positions + k_block * K_BLOCK + warp * 8);
    char* const to = block.ring + slot * B::BUFFER + (warp * N + lane) * 16;
    Input values[B::GROUPS][8];
    UNROLL for (int j = 0; j < 8; j += 2) {
      const TwoPositions at = two[j / 2];
      UNROLL for (int i = 0; i < B::GROUPS; i++) {
        values[i][j] = pixels.input(i, at.of[0]);
        values[i][j + 1] = pixels.input(i, at.of[1]);
      }
    }
    if (number >= STAGES) barrier_sync(EMPTY + slot, HANDING);
    UNROLL for (int i = 0; i < B::GROUPS; i++) {
      unsigned high[4], low[4];
      UNROLL for (int j = 0; j < 4; j++) {
        if constexpr (SCALES) {
          const float one = values[i][2 * j] * scales[i], other = values[i][2 * j + 1] * scales[i];
          if constexpr (NUMBERS > 1) {
            const Halves parts(one, other);
            high[j] = parts.high, low[j] = parts.low;
          } else {
            high[j] = as_half(one, other);
          }
          largest[i] = larger(largest[i], high[j]);
          bits[i] |= FLOAT_AS_BITS(one) | FLOAT_AS_BITS(other);
        } else {
          high[j] = values[i][2 * j] | (unsigned)values[i][2 * j + 1] << 16;
        }
      }
      *(uint4*)(to + i * 512) = make_uint4(high[0], high[1], high[2], high[3]);
      if constexpr (NUMBERS > 1) *(uint4*)(to + i * 512 + B::PART) = make_uint4(low[0], low[1], low[2], low[3]);
    }
    show_tensor_cores();
    barrier_arrive(FULL + slot, HANDING);
  }
}

// The largest finite inputs of a thread's pixels in every second k-block.
template <int MT, int N> DEVICE void find_largest(const Block<MT, N>& block, const Pixels<N>& pixels, int producer) {
  UNROLL for (int i = 0; i < N / 32; i++) {
    float largest = 0.f;
    for (int at = (threadIdx.x >> 5 & 3) + 4 * producer; at < block.k_blocks * K_BLOCK; at += 4 * PRODUCERS) {
      const float value = fabsf(pixels.input(i, block.positions[at]));
      if (value > largest && value <= MOST) largest = value;
    }
    atomicMax(block.finite + i * 32 + (threadIdx.x & 31), FLOAT_AS_BITS(largest));
  }
}

// Whether a pixel's largest input is infinite as float16, or so small that low parts have too few bits.
DEVICE bool is_out_of_range(unsigned found) {
  return found != 0 && (found >= 2 * INFINITE_HALF || found < 2 * SMALL_HALF);
}

// The bits of a power of two's exponent, which brings the largest input of a pixel that is out of range to 2**14 up to
// 2**15; of others 1.
template <int MT, int N> DEVICE int exponent_of(const Block<MT, N>& block, int pixel) {
  const unsigned largest = block.finite[pixel];
  return largest == 0 || !is_out_of_range(block.found[pixel]) ? 127 : 268 - max((int)(largest >> 23), 15);
}
DEVICE float power(int exponent) { return BITS_AS_FLOAT(exponent << 23); }

// The weights of 64 filters in a k-block.
struct Weights {
  unsigned high[4], low[4], choice;

  DEVICE void fetch(const int4* fragments, const unsigned* choices) {
    read_early(high, fragments);
    if constexpr (NUMBERS > 1) read_early(low, fragments + 128);
    choice = *choices;
  }
};

// Their high parts for inputs' low ones, when they have come.
struct Lowered {
  unsigned high[4];

  DEVICE void compute(Weights& of) {
    UNROLL for (int j = 0; j < 4; j++) {
      computed(of.high[j]);
      if constexpr (NUMBERS > 1) {
        computed(of.low[j]);
        high[j] = lowered(of.high[j]);
        computed(high[j]);
      }
    }
    computed(of.choice);
  }
};

// Products come in the order of k-blocks, and of the MT times 64 filters in each: two in a row have different
// registers. Weights are asked for three products ahead, as they arrive at ten bytes a cycle, in half precision five.
template <int MT, int N> DEVICE void multiply(const Block<MT, N>& block, float (&sums)[MT][N / 2]) {
  using B = Block<MT, N>;
  constexpr int FETCHED = NUMBERS > 1 ? 4 : 6;
  const int first = threadIdx.x >> 7, thread = threadIdx.x & 127, products = MT * block.k_blocks;
  int k_block = block.first_k_block;
  const int4* fragments = block.weights + k_block * block.stride + MT * first * B::TILE_UNITS + thread;
  // From there, in bytes.
  const int choices_at =
      16 * (B::CHOICES_AT + MT * first * (16 - B::TILE_UNITS) - thread) + thread / 4 * 8 + thread % 2 * 4;
  Weights weights[FETCHED];
  Lowered lowered[2];
  UNROLL for (int m = 0; m < MT; m++)
    UNROLL for (int i = 0; i < N / 2; i++) sums[m][i] = 0.f;
  auto fetch = [&](int number, int m, Weights& to) {
    if (number < products)
      to.fetch(fragments + m * B::TILE_UNITS, (const unsigned*)((const char*)fragments + choices_at) + m * 64);
    if (m < MT - 1) return;
    fragments += block.stride;
    if (++k_block == block.k_blocks) k_block = 0, fragments -= block.k_blocks * block.stride;
  };
  UNROLL for (int i = 0; i < FETCHED - 1; i++) fetch(i, i % MT, weights[i]);
  lowered[0].compute(weights[0]);
  wait_for_kernel();
  const unsigned ring = lower_half(shared_address(block.ring), N * 16);
  int slot = 0;
  for (int start = 0; start < products; start += FETCHED) {
    UNROLL for (int i = 0; i < FETCHED; i++) {
      const int number = start + i, m = i % MT, ahead = i + FETCHED - 1;
      if (m == 0 && number >= products) break;
      const Weights& own = weights[i];
      if (m == 0) barrier_sync(FULL + slot, HANDING);
      const unsigned high_at = ring + slot * (B::BUFFER >> 4), low_at = high_at + (B::PART >> 4);
      begin_products();
      if constexpr (NUMBERS > 1) {
        add_product(sums[m], lowered[i % 2].high, descriptor(low_at), own.choice);
        add_product(sums[m], own.low, descriptor(high_at), own.choice);
      }
      add_product(sums[m], own.high, descriptor(high_at), own.choice);
      commit_products();
      wait_for_products<1>();
      // The one before is complete, its weights' place is free, and with a k-block's first product all of the k-block
      // before.
      if (m == 0 && number > 0 && number + (STAGES - 1) * MT < products)
        barrier_arrive(EMPTY + (slot + STAGES - 1) % STAGES, HANDING);
      if (m == MT - 1) slot = (slot + 1) % STAGES;
      fetch(start + ahead, ahead % MT, weights[ahead % FETCHED]);
      if (number + 1 < products) lowered[(i + 1) % 2].compute(weights[(i + 1) % FETCHED]);
    }
  }
  wait_for_products<0>();
  UNROLL for (int m = 0; m < MT; m++)
    UNROLL for (int i = 0; i < N / 2; i++) computed(sums[m][i]);
}

// Sums come to shared memory, scaled, so that all lanes of a warp can write pixels of one filter.
template <int MT, int N> DEVICE void stage_sums(const Block<MT, N>& block, float (&sums)[MT][N / 2]) {
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  float* const staged = (float*)block.ring;
  const bool is_scaled = SCALES && *block.is_any;
  UNROLL for (int m = 0; m < MT; m++) {
    const int row = (MT * (warp >> 2) + m) * 64 + (warp & 3) * 16 + (lane >> 2);
    const float factors[2] = {block.factors[row], block.factors[row + 8]};
    UNROLL for (int i = 0; i < N / 4; i++) {
      const int pixel = (i >> 1) * 8 + (lane & 3) * 2;
      float one = sums[m][2 * i] * factors[i & 1], other = sums[m][2 * i + 1] * factors[i & 1];
      if (is_scaled) one *= power(254 - exponent_of(block, pixel)), other *= power(254 - exponent_of(block, pixel + 1));
      *(float2*)(staged + (row + 8 * (i & 1)) * (N + 8) + pixel) = make_float2(one, other);
    }
  }
}

// Blocks that share a tile's k-blocks write some of its filters each.
template <int MT, int N> DEVICE void write_sums(const Geometry& g, const Block<MT, N>& block, const Element* bias,
                                                const Element* residual, Element* y) {
  using B = Block<MT, N>;
  constexpr int PITCH = N + 8, ROWS = 8;
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const float* const staged = (const float*)block.ring;
  int at[B::GROUPS];
  UNROLL for (int i = 0; i < B::GROUPS; i++) at[i] = place_of(g, block.tile * N + i * 32 + lane);
  constexpr int AT_ONCE = CONSUMING / 32 * ROWS;
  for (int first = block.part * AT_ONCE + warp * ROWS; first < block.filters; first += g.parts * AT_ONCE) {
    const int filter = block.filter + first, rows = block.filters - first;
    float total[ROWS][B::GROUPS];
    UNROLL for (int row = 0; row < ROWS; row++) {
      const float bias_of = g.has_bias && row < rows ? widened(bias[filter + row]) : 0.f;
      UNROLL for (int i = 0; i < B::GROUPS; i++) {
        total[row][i] = bias_of;
        if (g.has_residual && at[i] >= 0 && row < rows)
          total[row][i] += widened(residual[at[i] + (filter + row) * g.out_map]);
      }
    }
    for (int other = 0; other < g.parts; other++)
      UNROLL for (int row = 0; row < ROWS; row++)
        UNROLL for (int i = 0; i < B::GROUPS; i++) {
          const float* from = staged + (first + row) * PITCH + i * 32 + lane;
          total[row][i] += load_of(from, other, g.parts);
        }
    UNROLL for (int row = 0; row < ROWS; row++)
      UNROLL for (int i = 0; i < B::GROUPS; i++)
        if (at[i] >= 0 && row < rows) y[at[i] + (filter + row) * g.out_map] = narrowed(with_relu(g, total[row][i]));
  }
}

// Its place, and what it needs of the weights, which comes to shared memory.
template <int MT, int N> DEVICE Block<MT, N> block_of(const Geometry& g, const int4* weights) {
  SHARED_MEMORY;
  using B = Block<MT, N>;
  B block;
  const int place = g.parts.quotient(blockIdx.x), part = block.part = blockIdx.x - place * g.parts;
  block.tile = g.k_tiles.quotient(place);
  const int k_tile = place - block.tile * g.k_tiles;
  block.group = g.group_tiles.divide(k_tile);
  const int in_group = (k_tile - block.group * g.group_tiles) * B::FILTERS;
  block.filter = block.group * g.group_filters + in_group, block.filters = min(B::FILTERS, g.group_filters - in_group);
  block.weights = weights + (size_t)k_tile * g.tile_rows * g.stride, block.stride = g.stride;
  block.factors = (const float*)(block.weights + 1);
  const unsigned count = block.weights->x, begin = count * part / g.parts;
  block.weights += (size_t)(1 + begin) * g.stride, block.k_blocks = count * (part + 1) / g.parts - begin;
  block.first_k_block = (unsigned)block.tile % (unsigned)max(block.k_blocks, 1);
  block.ring = (char*)shared, block.positions = (Position*)(block.ring + STAGES * B::BUFFER);
  for (int i = threadIdx.x; i < block.k_blocks * (K_BLOCK / 2); i += blockDim.x)
    ((int4*)block.positions)[i] =
        block.weights[(size_t)(i / (K_BLOCK / 2)) * g.stride + B::POSITIONS_AT + i % (K_BLOCK / 2)];
  block.found = (unsigned*)(block.ring + B::FOUND_AT), block.finite = block.found + N, block.is_any = block.finite + N;
  if (threadIdx.x <= 2 * N) block.found[threadIdx.x] = 0;
  return block;
}

// What producers find out about inputs as they write them; where consumers see that any is out of range, once more.
template <int MT, int N> DEVICE void write_again(const Block<MT, N>& block, const Pixels<N>& pixels, int producer,
                                                 unsigned (&largest)[N / 32], unsigned (&bits)[N / 32]) {
  const int lane = threadIdx.x & 31;
  UNROLL for (int i = 0; i < N / 32; i++)
    atomicMax(block.found + i * 32 + lane, 2 * max(largest[i] & 0xffff, largest[i] >> 16) + (bits[i] << 1 != 0));
  barrier_sync(ALL, THREADS), barrier_sync(ALL, THREADS);
  if (*block.is_any) {
    find_largest(block, pixels, producer);
    barrier_sync(ALL, THREADS);
    float scales[N / 32];
    UNROLL for (int i = 0; i < N / 32; i++) scales[i] = power(exponent_of(block, i * 32 + lane));
    write_inputs(block, pixels, scales, producer, largest, bits);
    barrier_sync(ALL, THREADS);
  }
}

template <int MT, int N> DEVICE void produce(const Geometry& g, const Block<MT, N>& block, int producer,
                                             const Element* x, const Element* residual) {
  const Pixels<N> pixels = pixels_of(g, block, x + block.group * g.group_elements);
  wait_for_kernel();
  if (g.has_residual && block.part == 0) prefetch_residual(g, block, residual, producer);
  float scales[N / 32];
  unsigned largest[N / 32], bits[N / 32];
  UNROLL for (int i = 0; i < N / 32; i++) scales[i] = 1.f;
  write_inputs(block, pixels, scales, producer, largest, bits);
  if constexpr (SCALES)
    write_again(block, pixels, producer, largest, bits);
  else
    barrier_sync(ALL, THREADS);
  if (g.parts > 1) cluster_sync();
}

template <int MT, int N> DEVICE void consume(const Geometry& g, const Block<MT, N>& block, const Element* bias,
                                             const Element* residual, Element* y) {
  float sums[MT][N / 2];
  multiply(block, sums);
  barrier_sync(ALL, THREADS);
  if constexpr (SCALES) {
    if (threadIdx.x < N && is_out_of_range(block.found[threadIdx.x])) *block.is_any = 1;
    barrier_sync(ALL, THREADS);
    if (*block.is_any) {
      barrier_sync(ALL, THREADS);
      multiply(block, sums);
      barrier_sync(ALL, THREADS);
    }
  }
  stage_sums(block, sums);
  if (g.parts > 1)
    cluster_sync();
  else
    barrier_sync(MULTIPLIED, CONSUMING);
  write_sums(g, block, bias, residual, y);
}

template <int MT, int N> DEVICE void convolution(const Geometry& g, const Element* __restrict__ x,
                                                 const int4* __restrict__ weights, const Element* __restrict__ bias,
                                                 const Element* __restrict__ residual, Element* __restrict__ y) {
  const Block<MT, N> block = block_of<MT, N>(g, weights);
  __syncthreads();
  launch_next();
  const int warpgroup = threadIdx.x >> 7;
  if (warpgroup >= CONSUMERS) {
    Role::become_producer();
    produce(g, block, warpgroup - CONSUMERS, x, residual);
  } else {
    Role::become_consumer();
    consume(g, block, bias, residual, y);
  }
  // Until nobody reads sums of this block any more.
  if (g.parts > 1) cluster_sync();
}

}  // namespace tvm_sparse
