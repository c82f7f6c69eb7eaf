// What a warpgroup of bottleneck.cu computes of a step: the three layers, and where all is in shared memory.
//
// The integers are declared in scheduling/cuda/bottleneck/kernels.py.

#include "device/kernel.cuh"
#include "device/barriers.cuh"
#include "device/pairs.cuh"
#include "device/pipeline.cuh"
#include "device/wgmma.cuh"

namespace tvm_sparse {

// Warpgroups that multiply, and one that copies; registers of a thread, which are 168 where all have as many.
constexpr int CONSUMERS = 2, CONSUMING = 128 * CONSUMERS, COPYING = 128, THREADS = CONSUMING + COPYING;
constexpr int REGISTERS = 232, OTHERS = 40;
// Channels: of what lies between, of input and output, and of a slot.
constexpr int NARROW = 64, WIDE = 256, CHUNK = 64, CHUNKS = WIDE / CHUNK;
// Columns of a strip, and with one on either side; rows of a step, and of what a step of the 3x3 layer reads. Tensor
// cores take 64 pixels, of which those of two columns of each row are not used.
constexpr int COLUMNS = 14, STAGED = 16, ROWS = 4, READ_ROWS = ROWS + 2, PIXELS = ROWS * STAGED;
// Bytes between groups of 8 channels, of a slot, and of what lies between; of these, and of a row of the input.
constexpr int SLOT_PITCH = PIXELS * 16 + 32, PITCH = READ_ROWS * STAGED * 16;
constexpr int SLOTS = 6, SLOT = CHUNK / 8 * SLOT_PITCH - 32, BETWEEN = NARROW / 8 * PITCH, KEPT = 2 * STAGED * WIDE;
// Where things are in shared memory, in bytes: weights of the three layers and their biases come as they are packed.
constexpr int FIRST = 0, SECOND = FIRST + 2 * WIDE * NARROW, THIRD = SECOND + 2 * 9 * NARROW * NARROW;
constexpr int BIASES = THIRD + 2 * NARROW * WIDE, PACKED = BIASES + 4 * (2 * NARROW + WIDE);
constexpr int BETWEEN_AT = PACKED, KEPT_AT = BETWEEN_AT + CONSUMERS * BETWEEN;
constexpr int RING = KEPT_AT + CONSUMERS * KEPT, HANDED = RING + SLOTS * SLOT;

#ifndef TVM_SPARSE_EMULATED
// 64 pixels times 64 filters, the pixels in shared memory or in registers; the first products of sums begin them.
template <bool ADDS>
DEVICE void add_product(float (&sums)[32], unsigned long long a, unsigned long long b) {
  WGMMA(".sync.aligned.m64n64k16." TYPES, 32, "%32, %33, %34, 1, 1, 0, 0", "l"(a), "l"(b), "n"((int)ADDS));
}
template <bool ADDS>
DEVICE void add_product(float (&sums)[32], const unsigned* a, unsigned long long b) {
  WGMMA(".sync.aligned.m64n64k16." TYPES, 32, A_AND_B_32 ", %37, 1, 1, 0", IN_REGISTERS(a), "l"(b), "n"((int)ADDS));
}
// Four squares of 8x8 numbers, of which a lane has two of each and knows where 8 of one lie together.
DEVICE void store_squares(unsigned at, const unsigned* squares) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(squares[0]),
               "r"(squares[1]), "r"(squares[2]), "r"(squares[3])
               : "memory");
}
#endif

// A block: shared memory, and barriers of slots that are full for one of the warpgroups, and of empty ones.
struct Block {
  unsigned char* bytes;
  unsigned long long *full, *empty;

  DEVICE unsigned address(int at) const { return shared_address(bytes) + at; }
  DEVICE const float* biases(int layer) const { return (const float*)(bytes + BIASES) + layer * NARROW; }
};

// A strip: its image and first column.
struct Strip {
  int image, column;

  DEVICE Strip(const Geometry& g, int number)
      : image(g.across.quotient(number)), column((number - image * g.across) * COLUMNS) {}
};

// Sums of 64 pixels and 64 filters, as a thread has them.
typedef float Sums[32];
DEVICE void all_computed(Sums& sums) {
  UNROLL for (int i = 0; i < 32; i++) computed(sums[i]);
}
// A thread's part of a chunk of the input, and of what is added to as many filters: four times 8, of two pixels.
constexpr int PARTS = CHUNKS;
typedef unsigned Pixels[16];
DEVICE void all_computed(Pixels& x) {
  UNROLL for (int i = 0; i < 16; i++) computed(x[i]);
}

// A warpgroup of a block, and where a thread is in it.
struct Consumer {
  const Block& block;
  int number, warp, lane;

  DEVICE explicit Consumer(const Block& block)
      : block(block), number(same_of_all(threadIdx.x >> 7)), warp(same_of_all(threadIdx.x >> 5 & 3)),
        lane(threadIdx.x & 31) {}
  DEVICE void meet_all() const { barrier_sync(1 + number, 128); }
  DEVICE int between() const { return BETWEEN_AT + number * BETWEEN; }
  // Two neighbouring sums, with bias and ReLU.
  DEVICE unsigned finished(const float* sums, int layer, int filter) const {
    const float* bias = block.biases(layer) + filter;
    return larger(as_pair(sums[0] + bias[0], sums[1] + bias[1]), 0);
  }

  // Of the rows that a step reads the one that is added to this warp's outputs, of this step or, of the first warp, the
  // next one; so the first layer's warps have other rows than those behind it, and columns that begin one further right.
  DEVICE int row() const { return (warp + ROWS - 1) % ROWS; }
  DEVICE static int column(int pixel) { return (pixel + 1) % STAGED; }
  // Its pixels, of a chunk that is in a slot.
  DEVICE void take(int slot, Pixels& x) const {
    const int4* from = (const int4*)(block.bytes + RING + slot * SLOT) + row() * STAGED;
    UNROLL for (int i = 0; i < 4; i++) {
      const int4 found = from[(i % 2 * 4 + lane % 4) * (SLOT_PITCH / 16) + column(i / 2 * 8 + (lane >> 2))];
      x[4 * i] = found.x, x[4 * i + 1] = found.y, x[4 * i + 2] = found.z, x[4 * i + 3] = found.w;
    }
  }
  // The first layer's sums of a step, whose chunks begin in the ring with this one, and the pixels; of each slot the
  // turn. Channels are in such an order that what is multiplied is what will be added, in the same registers.
  DEVICE void reduce(int begin, unsigned& turns, Sums& sums, Pixels (&x)[CHUNKS]) const {
    UNROLL for (int chunk = 0; chunk < CHUNKS; chunk++) {
      const int slot = (begin + chunk) % SLOTS;
      wait_at(block.full + number * SLOTS + slot, turns >> slot & 1);
      turns ^= 1 << slot;
      take(slot, x[chunk]);
      const unsigned weights = lower_half(block.address(FIRST), NARROW * 16) + chunk * CHUNK * NARROW / 8;
      all_computed(sums);
      all_computed(x[chunk]);
      begin_products();
      UNROLL for (int k = 0; k < CHUNK / 16; k++) {
        const unsigned* own = x[chunk] + k / 2 * 4 + k % 2 * 2;
        const unsigned pixels[4] = {own[0], own[8], own[1], own[9]};
        const auto b = descriptor(weights + k * 2 * NARROW);
        if (chunk + k == 0) add_product<false>(sums, pixels, b);
        else add_product<true>(sums, pixels, b);
      }
      commit_products();
      all_computed(sums);
      __syncwarp();
      if (lane == 0) arrive(block.empty + slot);
    }
    wait_for_products<0>();
    all_computed(sums);
    UNROLL for (int chunk = 0; chunk < CHUNKS; chunk++) all_computed(x[chunk]);
  }
  // The first warp keeps its pixels for the next step, and has those of the step before.
  DEVICE void exchange(Pixels (&x)[CHUNKS]) const {
    if (warp > 0) return;
    int4* const kept = (int4*)(block.bytes + KEPT_AT + number * KEPT) + lane;
    UNROLL for (int chunk = 0; chunk < CHUNKS; chunk++) UNROLL for (int i = 0; i < 4; i++) {
      unsigned* own = x[chunk] + 4 * i;
      const int4 before = kept[(4 * chunk + i) * 32];
      kept[(4 * chunk + i) * 32] = make_int4(own[0], own[1], own[2], own[3]);
      own[0] = before.x, own[1] = before.y, own[2] = before.z, own[3] = before.w;
    }
  }
  // To shared memory, zero outside of the image.
  DEVICE void keep(const Geometry& g, const Strip& strip, int step, const Sums& sums) const {
    const int row = step * ROWS + 1 + this->row(), place = (2 + this->row()) * STAGED + column(lane & 15);
    UNROLL for (int j = 0; j < 8; j += 2) {
      unsigned squares[4];
      UNROLL for (int i = 0; i < 4; i++) {
        const unsigned both = finished(sums + 4 * j + 2 * i, 0, 8 * (j + i / 2) + lane % 4 * 2);
        const int own = strip.column - 1 + column(i % 2 * 8 + (lane >> 2));
        squares[i] = row >= 0 && row < g.height && own >= 0 && own < g.width ? both : 0;
      }
      store_squares(block.address(between() + (j + (lane >> 4)) * PITCH + place * 16), squares);
    }
  }
  // The 3x3 layer's outputs, as the last layer multiplies them.
  DEVICE void convolve(Sums& sums, unsigned (&outputs)[16], Pixels (&x)[CHUNKS]) const {
    const unsigned pixels = lower_half(block.address(between()), PITCH);
    const unsigned weights = lower_half(block.address(SECOND), NARROW * 16);
    all_computed(sums);
    begin_products();
    UNROLL for (int tap = 0; tap < 9; tap++) UNROLL for (int k = 0; k < NARROW / 16; k++) {
      const auto a = descriptor(pixels + tap / 3 * STAGED + tap % 3 + k * PITCH / 8);
      const auto b = descriptor(weights + tap * NARROW * NARROW / 8 + k * 2 * NARROW);
      if (tap + k == 0) add_product<false>(sums, a, b);
      else add_product<true>(sums, a, b);
    }
    commit_products();
    all_computed(sums);
    exchange(x);
    wait_for_products<0>();
    all_computed(sums);
    UNROLL for (int i = 0; i < 16; i++) outputs[i] = finished(sums + 2 * i, 1, 8 * (i / 2) + lane % 4 * 2);
  }
  // The last two rows become the first of the next step.
  DEVICE void keep_rows() const {
    int4* to = (int4*)(block.bytes + between());
    UNROLL for (int i = 0; i < 2; i++) {
      const int number = threadIdx.x % 128 + 128 * i, at = number / 32 * (PITCH / 16) + number % 32;
      to[at] = to[at + ROWS * STAGED];
    }
  }
};

// The last layer: 64 pixels and 64 filters at a time, of which a thread has two pixels of a row. Filters are in such an
// order that of each it has 8 that are neighbours, twice.
struct Expansion {
  const Consumer& own;
  size_t at;
  bool inside[2];

  DEVICE Expansion(const Geometry& g, const Consumer& own, const Strip& strip, int step)
      : own(own) {
    const int row = step * ROWS + own.warp, column = own.lane >> 2;
    at = (((size_t)strip.image * g.height + row) * g.width + strip.column + column) * WIDE + own.lane % 4 * 8;
    UNROLL for (int i = 0; i < 2; i++)
      inside[i] = row < g.height && 8 * i + column < COLUMNS && strip.column + 8 * i + column < g.width;
  }
  // Of the four places of 8 numbers the first two are of the first pixel.
  DEVICE size_t place(int part, int i) const { return at + i / 2 * 8 * WIDE + part * 64 + i % 2 * 32; }
  DEVICE void multiply(const unsigned (&inputs)[16], int part, Sums& sums) const {
    const unsigned weights = lower_half(own.block.address(THIRD), WIDE * 16) + part * 64;
    begin_products();
    UNROLL for (int k = 0; k < NARROW / 16; k++) {
      const auto b = descriptor(weights + k * 2 * WIDE);
      if (k == 0) add_product<false>(sums, inputs + 4 * k, b);
      else add_product<true>(sums, inputs + 4 * k, b);
    }
    commit_products();
    all_computed(sums);
  }
  DEVICE void write(Element* y, int part, Sums& sums, const Pixels& added) const {
    all_computed(sums);
    UNROLL for (int i = 0; i < 4; i++) {
      const float* biases = own.block.biases(2) + part * 64 + i % 2 * 32 + own.lane % 4 * 8;
      unsigned found[4];
      UNROLL for (int j = 0; j < 4; j++) {
        const float* sum = sums + (i % 2 * 4 + j) * 4 + i / 2 * 2;
        const float first = sum[0] + biases[2 * j] + part_of(added[4 * i + j], 0);
        found[j] = larger(as_pair(first, sum[1] + biases[2 * j + 1] + part_of(added[4 * i + j], 1)), 0);
      }
      if (inside[i / 2]) *(int4*)(y + place(part, i)) = make_int4(found[0], found[1], found[2], found[3]);
    }
  }
  // Of each part products are on their way while the one before is written.
  DEVICE void run(const unsigned (&inputs)[16], const Pixels (&added)[PARTS], Element* y, Sums& sums) const {
    Sums others;
    multiply(inputs, 0, sums);
    UNROLL for (int part = 0; part < PARTS; part += 2) {
      multiply(inputs, part + 1, others);
      wait_for_products<1>();
      write(y, part, sums, added[part]);
      if (part + 2 < PARTS) {
        multiply(inputs, part + 2, sums);
        wait_for_products<1>();
      } else {
        wait_for_products<0>();
      }
      write(y, part + 1, others, added[part + 1]);
    }
  }
};

}  // namespace tvm_sparse
