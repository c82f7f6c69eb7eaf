// What the kernels of plane.cu are called with: numbers, weights in shared memory, primitives.
//
// The integers are declared in scheduling/cuda/plane/kernels.py.

#include "device/kernel.cuh"
#include "device/pairs.cuh"
#include "device/pipeline.cuh"
#include "device/split.cuh"
#include "device/wgmma.cuh"

namespace tvm_sparse {

// Warpgroups that consume, and that produce; slots of the ring at most; threads that hand over one slot.
constexpr int CONSUMERS = 2, PRODUCERS = 2, MAX_SLOTS = 4;
using Role = Roles<CONSUMERS, PRODUCERS, 88>;
constexpr int PRODUCING = Role::PRODUCING, HANDING = PRODUCING + 128, THREADS = Role::THREADS;
// Barriers of a block: of a slot that is full for one of consumers, who may both wait for it, and of an empty one.
// Then those of what is computed again. That of all threads, who meet at the beginning, is later that of those who
// write.
constexpr int FULL = 1, EMPTY = FULL + CONSUMERS * MAX_SLOTS;
constexpr int FULL_AGAIN = EMPTY + MAX_SLOTS, EMPTY_AGAIN = FULL_AGAIN + CONSUMERS, WRITTEN = 0;
static_assert(EMPTY_AGAIN < BARRIERS);
constexpr int FILTERS = 64;
// A tile's weights, in units: how much there is, output channels, where their maps begin, what their sums are
// multiplied with, and groups of three each.
constexpr int FILTERS_AT = 1, MAPS_AT = FILTERS_AT + FILTERS / 4, SCALES_AT = MAPS_AT + FILTERS / 4;
constexpr int GROUPS_AT = SCALES_AT + FILTERS / 4, GROUP = 3;
// Units of a part of a k-step's weights, and of its first 8 planes.
constexpr int STEP = 128, HALF = 64;
// Numbers that one of a tensor is the sum of, which tensor cores multiply.
constexpr int PARTS = sizeof(Element) == 2 ? 1 : 2;
// Powers of two of a window, the first of which is -11 in that of inputs as they are, and windows on either side of it.
constexpr int WINDOW = 26, FIRST_POWER = -11, WINDOWS = 5;
// It ends with these.
constexpr float SMALL = 1.f / 2048, LARGE = 32768.f;

#ifndef TVM_SPARSE_EMULATED
// 64 rows of A times N columns of B, both in shared memory.
#define PRODUCT(N, SUMS, A, B)                                                                            \
  DEVICE void add_product(float (&sums)[SUMS], unsigned long long a, unsigned long long b) {              \
    WGMMA(".sync.aligned.m64n" #N "k16." TYPES, SUMS, "%" #A ", %" #B ", 1, 1, 1, 0, 0", "l"(a), "l"(b)); \
  }
PRODUCT(64, 32, 32, 33)
PRODUCT(128, 64, 64, 65)
PRODUCT(192, 96, 96, 97)
// 4 bytes or 2 of the input where they are inside, so many bytes from its beginning; zero elsewhere.
DEVICE unsigned read_word(const Element* x, unsigned at, bool inside) {
  unsigned value = 0;
  asm("{.reg .pred inside; setp.ne.b32 inside, %2, 0; @inside ld.global.nc.b32 %0, [%1];}"
      : "+r"(value)
      : "l"((const char*)x + at), "r"((int)inside));
  return value;
}
DEVICE unsigned read_half(const Element* x, unsigned at, bool inside) {
  unsigned short value = 0;
  asm("{.reg .pred inside; setp.ne.b32 inside, %2, 0; @inside ld.global.nc.b16 %0, [%1];}"
      : "+h"(value)
      : "l"((const char*)x + at), "r"((int)inside));
  return value;
}
DEVICE int first_bit(unsigned bits) { return __ffs(bits) - 1; }
#endif

// A tile's weights in shared memory.
struct Weights {
  const int4* units;
  int chunks, chunks_at, steps_at, fragments_at;

  DEVICE explicit Weights(const int4* units) : units(units) {
    const int4 counts = *units;
    chunks = same_of_all(counts.y);
    chunks_at = GROUPS_AT + GROUP * same_of_all(counts.x), steps_at = chunks_at + chunks / 2 + 1;
    fragments_at = steps_at + (same_of_all(counts.z) + 3) / 4;
  }
  // The first group and the first k-step of a chunk.
  DEVICE int2 chunk(int number) const { return ((const int2*)(units + chunks_at))[number]; }
  // Where a k-step's 16 planes are, from a slot's beginning: as the lower half of a descriptor.
  DEVICE unsigned step(int number) const { return ((const unsigned*)(units + steps_at))[number]; }
  DEVICE int filter(int row) const { return ((const int*)(units + FILTERS_AT))[row]; }
  DEVICE float scale(int row) const { return ((const float*)(units + SCALES_AT))[row]; }
  // Where the maps of a warp's 16 filters begin.
  struct Maps {
    int4 four[4];
    DEVICE int operator[](int i) const {
      const int4 some = four[i / 4];
      return i % 4 == 0 ? some.x : i % 4 == 1 ? some.y : i % 4 == 2 ? some.z : some.w;
    }
  };
  DEVICE Maps maps() const {
    const int4* own = units + MAPS_AT + (threadIdx.x >> 5 & 3) * 4;
    return {{own[0], own[1], own[2], own[3]}};
  }
};

// Groups of planes that a slot has at a time.
struct Chunk {
  int groups;
  const int4* planes;

  DEVICE Chunk(const Weights& weights, int number) {
    const int begin = same_of_all(weights.chunk(number).x);
    groups = same_of_all(weights.chunk(number + 1).x) - begin, planes = weights.units + GROUPS_AT + GROUP * begin;
  }
};

}  // namespace tvm_sparse
