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
  X(in_h) X(in_w) X(image) X(stride_h) X(stride_w) X(pad_h) X(lead)                                                   \
  /* Taps: how many, how far apart, whether each of an axis has planes of its own; places to the first column. */     \
  X(r) X(s) X(dilation_h) X(dilation_w) X(own_rows) X(own_columns) X(first_column)                                    \
  X(has_bias) X(has_residual) X(relu) X(relu_max)

struct Geometry {
  FIELDS(DECLARED)
};
// Warpgroups that multiply, and those that write inputs; slots of the ring at most.
constexpr int MULTIPLIERS = 2, WRITERS = 2, MAX_SLOTS = 4, WRITING = 128 * WRITERS, HANDING = WRITING + 128;
// Registers of a thread that writes inputs; those that multiply take the rest of 256 for one of each.
constexpr int WRITERS_REGISTERS = 88;
// Barriers of a block: of a slot that is full for one of those who multiply, who may both wait for it, and of an empty one.
// Then those of what is computed again. That of all threads, who meet at the beginning, is later that of those who write.
constexpr int FULL = 1, EMPTY = FULL + MULTIPLIERS * MAX_SLOTS;
constexpr int FULL_AGAIN = EMPTY + MAX_SLOTS, EMPTY_AGAIN = FULL_AGAIN + MULTIPLIERS, WRITTEN = 0;
constexpr int FILTERS = 64;
// A tile's weights, in units: how much there is, output channels, where their maps begin, what their sums are multiplied
// with, and groups of three each.
constexpr int FILTERS_AT = 1, MAPS_AT = FILTERS_AT + FILTERS / 4, SCALES_AT = MAPS_AT + FILTERS / 4;
constexpr int GROUPS_AT = SCALES_AT + FILTERS / 4, GROUP = 3;
// Units of a part of a k-step's weights, and of its first 8 planes.
constexpr int STEP = 128, HALF = 64;
// Numbers that one of a tensor is the sum of, which tensor cores multiply; how much larger an input's second one is stored.
constexpr int PARTS = sizeof(Element) == 2 ? 1 : 2;
constexpr float LOW = 2048.f;
// Powers of two of a window, the first of which is -11 in that of inputs as they are, and windows on either side of it.
constexpr int WINDOW = 26, FIRST_POWER = -11, WINDOWS = 5;
// It ends with these.
constexpr float SMALL = 1.f / 2048, LARGE = 32768.f;

#ifndef TVM_SPARSE_PLANE_PRIMITIVES
#ifdef TVM_SPARSE_BFLOAT16
#define TYPES "f32.bf16.bf16"
#define PAIR "bf16x2"
#else
#define TYPES "f32.f16.f16"
#define PAIR "f16x2"
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
// 4 bytes or 2 of the input where they are inside, so many bytes from its beginning; zero elsewhere.
__device__ __forceinline__ unsigned read_word(const Element* x, unsigned at, bool inside) {
  unsigned value = 0;
  asm("{.reg .pred inside; setp.ne.b32 inside, %2, 0; @inside ld.global.nc.b32 %0, [%1];}"
      : "+r"(value)
      : "l"((const char*)x + at), "r"((int)inside));
  return value;
}
__device__ __forceinline__ unsigned read_half(const Element* x, unsigned at, bool inside) {
  unsigned short value = 0;
  asm("{.reg .pred inside; setp.ne.b32 inside, %2, 0; @inside ld.global.nc.b16 %0, [%1];}"
      : "+h"(value)
      : "l"((const char*)x + at), "r"((int)inside));
  return value;
}
// Two numbers that tensor cores multiply, the first in the lower half; the smaller and the larger of two of these, NaN
// where one is; and of two numbers.
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
__device__ __forceinline__ float smaller(float one, float other) {
  asm("min.NaN.f32 %0, %0, %1;" : "+f"(one) : "f"(other));
  return one;
}
__device__ __forceinline__ float larger(float one, float other) {
  asm("max.NaN.f32 %0, %0, %1;" : "+f"(one) : "f"(other));
  return one;
}
__device__ __forceinline__ float part_of(unsigned pair, int which) {
#ifdef TVM_SPARSE_BFLOAT16
  return BITS_AS_FLOAT(which ? pair & 0xffff0000u : pair << 16);
#else
  float value;
  asm("{.reg .b16 part; cvt.u16.u32 part, %1; cvt.f32.f16 %0, part;}" : "=f"(value) : "r"(pair >> 16 * which));
  return value;
#endif
}
__device__ __forceinline__ int first_bit(unsigned bits) { return __ffs(bits) - 1; }
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
  __device__ __forceinline__ float scale(int row) const { return ((const float*)(units + SCALES_AT))[row]; }
  // Where the maps of a warp's 16 filters begin.
  struct Maps {
    int4 four[4];
    __device__ __forceinline__ int operator[](int i) const {
      const int4 some = four[i / 4];
      return i % 4 == 0 ? some.x : i % 4 == 1 ? some.y : i % 4 == 2 ? some.z : some.w;
    }
  };
  __device__ __forceinline__ Maps maps() const {
    const int4* own = units + MAPS_AT + (threadIdx.x >> 5 & 3) * 4;
    return {{own[0], own[1], own[2], own[3]}};
  }
};

// Groups of planes that a slot has at a time.
struct Chunk {
  int groups;
  const int4* planes;

  __device__ __forceinline__ Chunk(const Weights& weights, int number) {
    const int begin = same_of_all(weights.chunk(number).x);
    groups = same_of_all(weights.chunk(number + 1).x) - begin, planes = weights.units + GROUPS_AT + GROUP * begin;
  }
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
  int first, to;

  __device__ __forceinline__ void read(const Geometry& g, const Place& place, const int4* planes, int group,
                                       const Element* x) {
    const int4 four = planes[0], others = planes[1], shift = planes[2];
    const bool inside = place.is_image && (unsigned)(place.in_y + shift.x) < (unsigned)g.in_h &&
                        (unsigned)(place.in_x + shift.y) < (unsigned)g.in_w;
    first = place.first, to = first < g.staged ? group * g.staged + first : -1;
    const unsigned from = place.from + shift.x * g.in_w + shift.y;
    const int channels[8] = {four.x, four.y, four.z, four.w, others.x, others.y, others.z, others.w};
#pragma unroll
    for (int j = 0; j < 8; j++) {
      // Of 32 bits, so that one addition finds each.
      const unsigned at = (from + channels[j]) * (unsigned)sizeof(Element);
      values[j] = V * sizeof(Element) == 4 ? read_word(x, at, inside) : read_half(x, at, inside);
    }
  }
  // The largest of float32.
  __device__ __forceinline__ float largest() const {
    float found = 0.f;
#pragma unroll
    for (int j = 0; j < 8; j++) found = fmaxf(found, fabsf(BITS_AS_FLOAT(values[j])));
    return found;
  }
  // Float32 scaled, in parts that are `part_units` apart.
  __device__ __forceinline__ void write(int4* slot, int part_units, float scale) const {
    if (to < 0) return;
    const unsigned* v = values;
    if constexpr (PARTS > 1) {
      unsigned high[4], low[4];
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const float one = scale * BITS_AS_FLOAT(v[2 * j]), other = scale * BITS_AS_FLOAT(v[2 * j + 1]);
        high[j] = as_pair(one, other);
        low[j] = as_pair(LOW * (one - part_of(high[j], 0)), LOW * (other - part_of(high[j], 1)));
      }
      slot[to] = make_int4(high[0], high[1], high[2], high[3]);
      slot[to + part_units] = make_int4(low[0], low[1], low[2], low[3]);
    } else if constexpr (V == 2) {
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

// Which of float32's inputs are out of float16's range, in shared memory.
template <int N>
struct Ranges {
  // Of a slot the last chunk, counted from 1, that has a place whose inputs may be out of the window of inputs as they are;
  // and which of the block's tiles is asked to be written again, from 1. Of that tile which windows its pixels are in, each
  // pixel's largest input as bits, and its window.
  int* odd;
  int* asked;
  unsigned* windows;
  unsigned* largest;
  unsigned char* window_of;

  static constexpr int UNITS = PARTS > 1 ? MAX_SLOTS / 2 + 1 + N / 4 + MULTIPLIERS * N / 16 : 0;

  __device__ __forceinline__ explicit Ranges(int4* units)
      : odd((int*)units), asked(odd + MAX_SLOTS), windows((unsigned*)(asked + MAX_SLOTS)), largest(windows + 4),
        window_of((unsigned char*)(largest + N)) {}
  // At a kernel's beginning.
  __device__ __forceinline__ void clear() const {
    if (PARTS > 1 && threadIdx.x < 2 * MAX_SLOTS) odd[threadIdx.x] = 0;
  }
  // Whether an output of which that is the largest input is not computed from inputs as they are.
  static __device__ __forceinline__ bool is_out(float largest) {
    return largest >= LARGE || (largest > 0.f && largest < SMALL);
  }
  // The power of two that brings a window's numbers to that of inputs as they are.
  static __device__ __forceinline__ float scale(int window) {
    const int exponent = max(-126, min(126, (WINDOWS - window) * WINDOW));
    return BITS_AS_FLOAT((127 + exponent) << 23);
  }
  static __device__ __forceinline__ int window(unsigned largest) {
    if (!largest) return WINDOWS;
    const int power = (int)(largest >> 23) - 127 - FIRST_POWER;
    return (power + WINDOWS * WINDOW) / WINDOW;
  }
  // A place's largest input in planes that are read so much further counts for all pixels that it is one of.
  __device__ __forceinline__ void tell(const Geometry& g, int first, int4 shift, float found) const {
#pragma unroll 1
    for (int i = 0; i < g.r * g.s; i++) {
      const int row = i / g.s * g.dilation_h, column = i % g.s * g.dilation_w;
      const int rows = g.own_rows ? 0 : row / g.stride_h, columns = g.own_columns ? 0 : column / g.stride_w;
      const int pixel = first - (rows * g.pitch + columns + g.first_column);
      const bool reads = row - rows * g.stride_h == shift.x && column - columns * g.stride_w == shift.y;
      if (reads && (unsigned)pixel < (unsigned)N) atomicMax(largest + pixel, FLOAT_AS_BITS(found));
    }
  }
};

template <int N>
struct Block {
  // A warp's outputs of a tile on their way to memory, 16 filters; units of all warps that multiply.
  static constexpr int OUT_PITCH = N + 8, OUT_UNITS = MULTIPLIERS * FILTERS * OUT_PITCH * sizeof(Element) / 16;

  const Geometry& g;
  Weights weights;
  Ranges<N> ranges;
  int4* ring;
  int worker, slots, slot_units;

  __device__ __forceinline__ int next(int slot) const { return slot + 1 == slots ? 0 : slot + 1; }
};

// Inputs of a tile and a chunk that are to be written to a slot, scaled.
struct Job {
  int tile, chunk, slot;
  float scale;
};

// A warp of those who write has a share of all copies of 32 * V places of 8 planes, all planes of the same places one after
// the other; several copies at a time, whose reads are all on their way before any is waited for. Whether all that it has
// read of a place is out of the window of inputs as they are.
template <int N, int V>
__device__ __forceinline__ bool do_job(const Block<N>& block, const Job& job, const Element* x, int warp) {
  constexpr int AT_ONCE = 4, WARPS = WRITING / 32;
  const Geometry& g = block.g;
  const Chunk chunk(block.weights, job.chunk);
  int4* slot = block.ring + job.slot * block.slot_units;
  const int lane = threadIdx.x & 31, all = (g.copies + 31) / 32 * chunk.groups, end = all * (warp + 1) / WARPS;
  int number = all * warp / WARPS, row = (unsigned)number / (unsigned)chunk.groups, group = number - row * chunk.groups;
  Place place(g, job.tile * N, (row * 32 + lane) * V);
  bool is_odd = false;
  float largest = 0.f;
  int last = -1;
  for (; number < end; number += AT_ONCE) {
    Copy<V> copies[AT_ONCE];
#pragma unroll
    for (int j = 0; j < AT_ONCE; j++) {
      copies[j].to = -1;
      if (number + j >= end) continue;
      if (group == chunk.groups) group = 0, row++, place = Place(g, job.tile * N, (row * 32 + lane) * V);
      copies[j].read(g, place, chunk.planes + group * GROUP, group, x);
      group++;
    }
#pragma unroll
    for (int j = 0; j < AT_ONCE; j++) {
      if (copies[j].to < 0) continue;
      if constexpr (PARTS > 1) {
        if (copies[j].first != last) is_odd = is_odd || Ranges<N>::is_out(largest), largest = 0.f, last = copies[j].first;
        largest = fmaxf(largest, copies[j].largest());
      }
      copies[j].write(slot, g.slot_groups * g.staged, job.scale);
    }
  }
  return is_odd || Ranges<N>::is_out(largest);
}

// Of one of a block's tiles the windows of its pixels, from the largest input of each.
template <int N>
__device__ __forceinline__ unsigned find_windows(const Block<N>& block, int own_tile, const Element* x, int warp) {
  const Ranges<N>& ranges = block.ranges;
  const Geometry& g = block.g;
  const int thread = threadIdx.x - 128 * MULTIPLIERS, multiplier = own_tile % MULTIPLIERS;
  const int tile = block.worker + own_tile * g.workers;
  if (thread == 0) ranges.windows[multiplier] = 0;
  if (thread < N) ranges.largest[thread] = 0;
  meet(WRITTEN, WRITING);
#pragma unroll 1
  for (int number = 0; number < block.weights.chunks; number++) {
    const Chunk chunk(block.weights, number);
    const int all = (g.staged + 31) / 32 * chunk.groups;
#pragma unroll 1
    for (int i = warp; i < all; i += WRITING / 32) {
      const int row = i / chunk.groups, group = i - row * chunk.groups;
      Copy<1> copy;
      copy.read(g, Place(g, tile * N, row * 32 + (threadIdx.x & 31)), chunk.planes + group * GROUP, group, x);
      if (copy.to >= 0) ranges.tell(g, copy.first, chunk.planes[group * GROUP + 2], copy.largest());
    }
  }
  meet(WRITTEN, WRITING);
  if (thread < N) {
    const int window = ranges.window(ranges.largest[thread]);
    ranges.window_of[multiplier * N + thread] = window;
    atomicOr(ranges.windows + multiplier, 1u << window);
  }
  meet(WRITTEN, WRITING);
  return same_of_all(ranges.windows[multiplier]);
}

// All chunks of all tiles, one after the other. Before a slot is written anew, the tile that was in it again where that is
// asked for, through this slot: for each window of its pixels that is not that of inputs as they are.
template <int N>
__device__ __forceinline__ void write_inputs(const Block<N>& block, const Element* x) {
  const Geometry& g = block.g;
  const int warp = same_of_all((threadIdx.x >> 5) - 4 * MULTIPLIERS), chunks = block.weights.chunks;
  const int all = (g.tiles - block.worker + g.workers - 1) / g.workers * chunks, first = min(all, block.slots);
  int own_tile = 0, chunk = 0, slot = 0;
  for (int number = 0; number < all + first; number++) {
    if (number == all && all < block.slots) slot = 0;
    int asked = -1;
    unsigned left = 0;
    if (number >= first) {
      meet(EMPTY + slot, HANDING);
      if constexpr (PARTS > 1) asked = same_of_all(block.ranges.asked[slot]) - 1;
      if (asked >= 0) {
        left = find_windows(block, asked, x, warp) & ~(1u << WINDOWS);
        pass(FULL_AGAIN + asked % MULTIPLIERS, HANDING);
      }
    }
    int again = 0;
    while (left || number < all) {
      Job job = {block.worker + own_tile * g.workers, chunk, slot, 1.f};
      if (left) job = {block.worker + asked * g.workers, again, slot, Ranges<N>::scale(first_bit(left))};
      const bool is_odd = PARTS == 1 && g.vector == 2 ? do_job<N, 2>(block, job, x, warp) : do_job<N, 1>(block, job, x, warp);
      if (PARTS > 1 && is_odd && !left) block.ranges.odd[slot] = number + 1;
      show_tensor_cores();
      if (!left) {
        pass(FULL + MULTIPLIERS * slot + own_tile % MULTIPLIERS, HANDING);
        break;
      }
      pass(FULL_AGAIN + asked % MULTIPLIERS, HANDING);
      meet(EMPTY_AGAIN, HANDING);
      if (++again == chunks) again = 0, left &= left - 1;
    }
    slot = block.next(slot);
    if (++chunk == chunks) chunk = 0, own_tile++;
  }
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
          meet(FULL_AGAIN + own.number, HANDING);
        } else {
          meet(FULL + MULTIPLIERS * slot + own.number, HANDING);
          last = slot, slot = block.next(slot), number++;
        }
        own.multiply(chunk, last, sums, low_sums);
        if (PARTS > 1 && !left) {
          is_odd = is_odd || same_of_all(block.ranges.odd[last]) == number;
          if (threadIdx.x % 128 == 0) block.ranges.asked[last] = is_odd && chunk + 1 == weights.chunks ? 1 + own_tile : 0;
        }
        wait_for_products<0>();
        pass(PARTS > 1 && left ? EMPTY_AGAIN : EMPTY + last, HANDING);
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
          meet(FULL_AGAIN + own.number, HANDING);
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
__device__ __forceinline__ void convolution(const Geometry& g, int stride, const Element* __restrict__ x,
                                            const int4* __restrict__ weights, const Element* __restrict__ bias,
                                            const Element* __restrict__ residual, Element* __restrict__ y) {
  SHARED_MEMORY;
  int4* const own = (int4*)shared + Block<N>::OUT_UNITS;
  const int worker = divide(blockIdx.x, g.k_tiles, g.k_tiles_m), k_tile = blockIdx.x - worker * g.k_tiles;
  for (int i = threadIdx.x; i < stride; i += blockDim.x) copy<16>(own + i, weights + (size_t)k_tile * stride + i, true);
  commit_copies();
  const Ranges<N> ranges(own + stride);
  ranges.clear();
  wait_for_copies<0>();
  show_tensor_cores();
  __syncthreads();
  launch_next();
  const Weights held(own);
  int4* const ring = own + stride + Ranges<N>::UNITS;
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

#define CONVOLUTION(N)                                                                                              \
  KERNEL OF_TYPE(tvm_sparse_planes_##N)(const Element* x, const int4* weights, const Element* bias,                 \
                                        const Element* residual, Element* y, int stride FIELDS(PARAMETER)) {        \
    const Geometry g = {FIELDS(PASSED)};                                                                            \
    convolution<N>(g, stride, x, weights, bias, residual, y);                                                      \
  }
CONVOLUTION(64) CONVOLUTION(128)
// Sums of two kinds have not room in the registers of a thread.
#ifdef TVM_SPARSE_HALF
CONVOLUTION(192)
#endif
