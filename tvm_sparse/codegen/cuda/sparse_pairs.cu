// Unstructured convolutions on sparse tensor cores: one kernel for every shape, weight and tile of `pair_cuda`.
//
// A sparse tensor core multiplies with one of every two columns of a matrix, which one each row chooses. Here columns are
// positions, (c, r, s), and rows filters: positions are put in pairs of which no filter of a block uses both
// (scheduling/cuda/pairs/packing.py). Where one weight in ten is not zero such pairs are found for all, so nothing is
// lost, and half of the work of a dense product is done.
//
// In float32 each number is the sum of a TF32 number, its high part, and of what is cut off, its low part:
// `high * high` in TF32, the corrections `low * all + high * low` in bfloat16, whose rounding is that much smaller. A pair
// of positions (p, q) is four columns of corrections: all of p, all of q, low of p, low of q. A row chooses two of four.
//
// A block has 64 * 2 * MT filters of N output pixels. Two warpgroups multiply (`wgmma`), 64 * MT filters each, their
// weights in registers; two others write inputs where tensor cores read them: 32 positions (a slab) of all pixels, from
// wherever they are in memory, through a ring of `STAGES` slabs. So reads of memory, and the splitting, happen beside the
// products. What bounds it is shared memory: tensor cores read a slab once for every 64 filters. Where there are few tiles
// several blocks, a cluster, share the slabs of one.
//
// Its parameters behind the tensors are the fields of `Geometry` in scheduling/cuda/pairs/tiling.py, in that order.

#define FIELDS(X)                                                                                                  \
  /* Blocks that share a tile's slabs; tiles of filters, in all and of a group, and its filters. */                \
  X(parts) X(parts_m) X(k_tiles) X(k_tiles_m) X(group_tiles) X(group_tiles_m) X(group_filters)                     \
  /* Output pixels in all, of a map, of a row; elements of an image. */                                            \
  X(pixels) X(out_map) X(out_map_m) X(out_w) X(out_w_m) X(out_image)                                               \
  /* Input: its size, elements of an image and of a group's channels; the filter's size and steps. */              \
  X(in_h) X(in_w) X(image) X(group_elements) X(r) X(s) X(stride_h) X(stride_w) X(pad_h) X(pad_w) X(dilation_h)     \
  X(dilation_w) X(has_bias) X(has_residual) X(relu) X(relu_max)

struct Geometry {
  FIELDS(DECLARED)
};

// Positions of a slab; slabs of the ring; warpgroups that multiply and that write inputs.
constexpr int SLAB = 32, STAGES = 4, MULTIPLIERS = 2, WRITERS = 2;
// Threads that multiply, and those that hand over one slab.
constexpr int MULTIPLYING = 128 * MULTIPLIERS, HANDING = MULTIPLYING + 128;
// Barriers of a block: of a slab that is full, of one that is empty, and of those who multiply.
constexpr int FULL = 1, EMPTY = FULL + STAGES, MULTIPLIED = EMPTY + STAGES;

#ifndef TVM_SPARSE_PAIR_PRIMITIVES
// 64 rows of A, of which registers hold the chosen columns and CHOICE which they are, times N columns of B in shared
// memory; lanes 2 * SELECTED and the next of each four say the choices.
#define PRODUCT(NAME, KIND, LAST, N, SUMS, A0, A1, A2, A3, B, CHOICE, LANES)                                        \
  template <int SELECTED>                                                                                           \
  __device__ __forceinline__ void NAME(float (&sums)[SUMS], const unsigned (&a)[4], unsigned long long b,           \
                                       unsigned choice) {                                                           \
    asm volatile("wgmma.mma_async.sp.sync.aligned.m64n" #N KIND " {" NUMBERS_##SUMS "}, {%" #A0 ", %" #A1 ", %" #A2 \
                 ", %" #A3 "}, %" #B ", %" #CHOICE ", %" #LANES ", 1, 1, 1" LAST ";"                                \
                 : SUMS_##SUMS                                                                                      \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(choice), "n"(SELECTED));                 \
  }
#define PRODUCTS(N, ...)                                                \
  PRODUCT(add_product, "k16.f32.tf32.tf32", "", N, __VA_ARGS__)         \
  PRODUCT(add_corrections, "k32.f32.bf16.bf16", ", 0", N, __VA_ARGS__)
PRODUCTS(64, 32, 32, 33, 34, 35, 36, 37, 38)
PRODUCTS(96, 48, 48, 49, 50, 51, 52, 53, 54)
PRODUCTS(128, 64, 64, 65, 66, 67, 68, 69, 70)
#define KERNEL extern "C" __global__ void __launch_bounds__(128 * (MULTIPLIERS + WRITERS), 1)
#endif

// Where a position is, bytes from a pixel's place, and its tap as a bit.
struct Position {
  int offset;
  unsigned tap;
};
struct __align__(16) TwoPositions {
  Position of[2];
};

// What both sides of a block know. A slab's weights are 16-byte units: for each 64 filters two fragments of a thread and
// four bytes of choices, then its positions, and at last how many slabs the tile has.
template <int MT, int N>
struct Block {
  static constexpr int TILES = MULTIPLIERS * MT, FILTERS = 64 * TILES, PART = SLAB * N * 4, BUFFER = 2 * PART;
  static constexpr int CHOICES_AT = 256 * TILES, POSITIONS_AT = CHOICES_AT + 32 * TILES;
  static constexpr int COUNT_AT = POSITIONS_AT + SLAB / 2;
  // 32 pixels.
  static constexpr int GROUPS = N / 32;
  // Registers of a thread that writes inputs, and of one that multiplies: together those of two that were launched.
  static constexpr int WRITERS_REGISTERS = N * MT > 192 ? 48 : N * MT > 96 ? 56 : 72;
  static constexpr int REGISTERS = 256 - WRITERS_REGISTERS;

  const int4* weights;
  // Blocks begin with different slabs: where all read the same weights at a time, they wait for each other.
  int stride, slabs, first_slab, tile;
  // Its first filter, and how many there are; which part of the slabs this block has.
  int filter, filters, part;
  char* ring;
  Position* positions;

  __device__ __forceinline__ int wrapped(int slab) const { return slab < slabs ? slab : slab - slabs; }
};

// Where an output pixel is in an image's first map of all images, or -1.
__device__ __forceinline__ int place_of(const Geometry& g, int pixel) {
  const int image = quotient(pixel, g.out_map, g.out_map_m);
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

// Every second slab: inputs of a quad of positions and 32 pixels at a time, as they are and as corrections.
template <int MT, int N>
__device__ __forceinline__ void write_inputs(const Geometry& g, const Block<MT, N>& block, const float* x,
                                             const float* residual, int writer) {
  using B = Block<MT, N>;
  // A warp's quads of a slab, and how many are read before any is written. All pixels of a quad are one warp's: reads of
  // shared memory are what all wait for, and so where positions are is read once.
  constexpr int QUADS = SLAB / 4 / 4, AT_ONCE = MT == 1 && N < 128 ? QUADS : 1;
  const int warp = threadIdx.x >> 5 & 3, lane = threadIdx.x & 31;
  const char* from[B::GROUPS];
  unsigned inside[B::GROUPS];
#pragma unroll
  for (int i = 0; i < B::GROUPS; i++) {
    const int pixel = block.tile * N + i * 32 + lane;
    const int image = quotient(pixel, g.out_map, g.out_map_m), in_map = pixel - image * g.out_map;
    const int out_y = quotient(in_map, g.out_w, g.out_w_m), out_x = in_map - out_y * g.out_w;
    const int in_y = out_y * g.stride_h - g.pad_h, in_x = out_x * g.stride_w - g.pad_w;
    from[i] = (const char*)(x + (image * g.image + in_y * g.in_w + in_x));
    inside[i] = 0;
    for (int r = 0; r < g.r; r++)
      for (int s = 0; s < g.s; s++) {
        const int row = in_y + r * g.dilation_h, column = in_x + s * g.dilation_w;
        if (pixel < g.pixels && (unsigned)row < (unsigned)g.in_h && (unsigned)column < (unsigned)g.in_w)
          inside[i] |= 1u << (r * g.s + s);
      }
  }
  wait_for_kernel();
  if (g.has_residual && block.part == 0) prefetch_residual(g, block, residual, writer);
  for (int number = writer, slab = block.wrapped(block.first_slab + writer); number < block.slabs;
       number += WRITERS, slab = block.wrapped(slab + WRITERS)) {
    const int slot = number % STAGES;
#pragma unroll
    for (int first = 0; first < QUADS; first += AT_ONCE) {
      float values[AT_ONCE][B::GROUPS][4];
#pragma unroll
      for (int quad = 0; quad < AT_ONCE; quad++) {
        const TwoPositions* two =
            (const TwoPositions*)(block.positions + slab * SLAB + (warp + 4 * (first + quad)) * 4);
        const TwoPositions four[2] = {two[0], two[1]};
#pragma unroll
        for (int i = 0; i < B::GROUPS; i++)
#pragma unroll
          for (int j = 0; j < 4; j++) {
            const Position position = four[j / 2].of[j % 2];
            values[quad][i][j] = 0.f;
            if (inside[i] & position.tap) values[quad][i][j] = *(const float*)(from[i] + position.offset);
          }
      }
      if (first == 0 && number >= STAGES) meet(EMPTY + slot, HANDING);
#pragma unroll
      for (int quad = 0; quad < AT_ONCE; quad++)
#pragma unroll
        for (int i = 0; i < B::GROUPS; i++) {
          const float* v = values[quad][i];
          char* to = block.ring + slot * B::BUFFER + ((warp + 4 * (first + quad)) * N + i * 32 + lane) * 16;
          *(float4*)to = make_float4(v[0], v[1], v[2], v[3]);
          *(uint4*)(to + B::PART) =
              make_uint4(as_bfloat16(v[0], v[1]), as_bfloat16(low_part(v[0]), low_part(v[1])), as_bfloat16(v[2], v[3]),
                         as_bfloat16(low_part(v[2]), low_part(v[3])));
        }
    }
    show_tensor_cores();
    pass(FULL + slot, HANDING);
  }
}

// The weights of 64 filters in a slab: fragments of two k-steps, of which tensor cores cut off themselves what is low.
struct Weights {
  unsigned high[2][4], choice;

  __device__ __forceinline__ void fetch(const int4* fragments, const unsigned* choices) {
    read_early(high[0], fragments), read_early(high[1], fragments + 128);
    choice = *choices;
  }
};

// Their corrections, as the registers of A for bfloat16.
struct Corrections {
  unsigned values[2][4], choice;

  __device__ __forceinline__ void compute(Weights& of) {
    // 4 bits each: of two the second is 14, the first 4; of four the second and fourth 13, the first and third 8.
    choice = 0x88888888u + (of.choice >> 1 & 0x11111111u) * 5;
#pragma unroll
    for (int step = 0; step < 2; step++)
#pragma unroll
      for (int j = 0; j < 4; j++) {
        computed(of.high[step][j]);
        const float value = BITS_AS_FLOAT(of.high[step][j]), low = low_part(value);
        values[step][j] = as_bfloat16(low, value - low);
        computed(values[step][j]);
      }
    computed(choice), computed(of.choice);
  }
};

// Products come in the order of slabs, and of the MT times 64 filters in each: two in a row have different registers.
// Weights are asked for three products ahead, as they arrive at ten bytes a cycle.
template <int MT, int N>
__device__ __forceinline__ void multiply(const Block<MT, N>& block, float (&sums)[MT][N / 2]) {
  using B = Block<MT, N>;
  constexpr int FETCHED = 4;
  const int first = threadIdx.x >> 7, thread = threadIdx.x & 127, products = MT * block.slabs;
  const int4* const of_first = block.weights + MT * first * 256 + thread;
  const unsigned* const choices_of_first = (const unsigned*)(block.weights + B::CHOICES_AT) + MT * first * 128 + thread;
  int slab = block.first_slab;
  const int4* fragments = of_first + slab * block.stride;
  const unsigned* choices = choices_of_first + 4 * slab * block.stride;
  Weights weights[FETCHED];
  Corrections corrections[2];
  auto fetch = [&](int number, int m, Weights& to) {
    if (number < products) to.fetch(fragments + m * 256, choices + m * 128);
    if (m < MT - 1) return;
    fragments += block.stride, choices += 4 * block.stride;
    if (++slab == block.slabs) slab = 0, fragments = of_first, choices = choices_of_first;
  };
#pragma unroll
  for (int i = 0; i < FETCHED - 1; i++) fetch(i, i % MT, weights[i]);
  corrections[0].compute(weights[0]);
  wait_for_kernel();
  const unsigned ring = lower_half(shared_address(block.ring), N * 16);
  int slot = 0;
  for (int start = 0; start < products; start += FETCHED) {
#pragma unroll
    for (int i = 0; i < FETCHED; i++) {
      const int number = start + i, m = i % MT;
      if (m == 0 && number >= products) break;
      const Weights& own = weights[i];
      const Corrections& low = corrections[i % 2];
      if (m == 0) meet(FULL + slot, HANDING);
      const unsigned high_at = ring + slot * (B::BUFFER >> 4), low_at = high_at + (B::PART >> 4);
      begin_products();
      add_corrections<0>(sums[m], low.values[0], descriptor(low_at), low.choice);
      add_product<0>(sums[m], own.high[0], descriptor(high_at), own.choice);
      add_corrections<1>(sums[m], low.values[1], descriptor(low_at + (B::PART >> 5)), low.choice);
      add_product<1>(sums[m], own.high[1], descriptor(high_at + (B::PART >> 5)), own.choice);
      commit_products();
      wait_for_products<1>();
      // The one before is complete, its weights' place is free, and with a slab's first product all of the slab before.
      if (m == 0 && number > 0 && number + (STAGES - 1) * MT < products)
        pass(EMPTY + (slot + STAGES - 1) % STAGES, HANDING);
      if (m == MT - 1) slot = (slot + 1) % STAGES;
      fetch(number + FETCHED - 1, (i + FETCHED - 1) % MT, weights[(i + FETCHED - 1) % FETCHED]);
      if (number + 1 < products) corrections[(i + 1) % 2].compute(weights[(i + 1) % FETCHED]);
    }
  }
  wait_for_products<0>();
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
#pragma unroll
  for (int m = 0; m < MT; m++)
#pragma unroll
    for (int i = 0; i < N / 2; i++) computed(sums[m][i]);
  meet(MULTIPLIED, MULTIPLYING);
#pragma unroll
  for (int m = 0; m < MT; m++) {
    const int row = (MT * (warp >> 2) + m) * 64 + (warp & 3) * 16 + (lane >> 2);
#pragma unroll
    for (int i = 0; i < N / 4; i++) {
      float* to = staged + (row + 8 * (i & 1)) * PITCH + (i >> 1) * 8 + (lane & 3) * 2;
      *(float2*)to = make_float2(sums[m][2 * i], sums[m][2 * i + 1]);
    }
  }
  if (g.parts > 1)
    meet_cluster();
  else
    meet(MULTIPLIED, MULTIPLYING);
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
__device__ __forceinline__ void convolution(const Geometry& g, int slabs, int stride, const float* __restrict__ x,
                                            const int4* __restrict__ weights, const float* __restrict__ bias,
                                            const float* __restrict__ residual, float* __restrict__ y) {
  SHARED_MEMORY;
  using B = Block<MT, N>;
  B block;
  const int place = quotient(blockIdx.x, g.parts, g.parts_m), part = block.part = blockIdx.x - place * g.parts;
  block.tile = quotient(place, g.k_tiles, g.k_tiles_m);
  const int k_tile = place - block.tile * g.k_tiles, group = divide(k_tile, g.group_tiles, g.group_tiles_m);
  const int in_group = (k_tile - group * g.group_tiles) * B::FILTERS;
  block.filter = group * g.group_filters + in_group, block.filters = min(B::FILTERS, g.group_filters - in_group);
  block.weights = weights + (size_t)k_tile * slabs * stride, block.stride = stride;
  const unsigned count = block.weights[B::COUNT_AT].x, begin = count * part / g.parts;
  block.weights += (size_t)begin * stride, block.slabs = count * (part + 1) / g.parts - begin;
  block.first_slab = (unsigned)block.tile % (unsigned)max(block.slabs, 1);
  block.ring = (char*)shared, block.positions = (Position*)(block.ring + STAGES * B::BUFFER);
  for (int i = threadIdx.x; i < block.slabs * (SLAB / 2); i += blockDim.x)
    ((int4*)block.positions)[i] = block.weights[(size_t)(i / (SLAB / 2)) * stride + B::POSITIONS_AT + i % (SLAB / 2)];
  __syncthreads();
  launch_next();
  const int warpgroup = threadIdx.x >> 7;
  if (warpgroup >= MULTIPLIERS) {
    give_registers<B::WRITERS_REGISTERS>();
    write_inputs(g, block, x + group * g.group_elements, residual, warpgroup - MULTIPLIERS);
    if (g.parts > 1) meet_cluster();
  } else {
    take_registers<B::REGISTERS>();
    float sums[MT][N / 2];
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
      for (int i = 0; i < N / 2; i++) sums[m][i] = 0.f;
    multiply(block, sums);
    write_sums(g, block, sums, bias, residual, y);
  }
  // Until nobody reads sums of this block any more.
  if (g.parts > 1) meet_cluster();
}

#define CONVOLUTION(MT, N)                                                                                        \
  KERNEL tvm_sparse_pairs_##MT##_##N(const float* x, const int4* weights, const float* bias, const float* residual, \
                                     float* y, int slabs, int stride FIELDS(PARAMETER)) {                         \
    const Geometry g = {FIELDS(PASSED)};                                                                          \
    convolution<MT, N>(g, slabs, stride, x, weights, bias, residual, y);                                          \
  }
CONVOLUTION(1, 64) CONVOLUTION(1, 96) CONVOLUTION(1, 128) CONVOLUTION(2, 64) CONVOLUTION(2, 96) CONVOLUTION(2, 128)
