// Bottlenecks of residual networks whose tensors lie in NHWC, in half precision: 1x1 to 64 channels, 3x3, 1x1 to 256,
// each with bias and ReLU, the last after the input is added. One kernel reads the input and writes the output.
//
// A warpgroup goes down a strip of 14 columns of an image, 4 rows a step. What the first layer makes of a step's rows,
// 16 columns of them, stays in shared memory with the last two rows of the step before, which is what the 3x3 layer
// reads: taps are distances there. Its sums become what the last layer multiplies without leaving registers. So only
// the two columns beside a strip are computed twice. The first step of a strip computes the row above the image's first
// ones, which is zero, and the first.
//
// All weights stay in shared memory. A block's warpgroups go down a strip each, so that one multiplies while the other
// waits for inputs or writes outputs. A third copies their inputs, in turns, 64 channels of a step at a time, into a
// ring of slots. From there it goes to registers, to be multiplied and, by the same thread, to be added to outputs: it is
// read once, and shared memory, of which tensor cores read the rest, is what bounds the kernel.

#include "bottleneck_layers.cuh"

namespace tvm_sparse {

// Barriers of slots whose copies a warp has begun, to arrive at when they are complete. Where all threads arrive, that
// takes longer than their copies.
struct Begun {
  static constexpr int MOST = 3;
  unsigned long long* barriers[MOST] = {};

  // Until all copies but the last LEFT slots' are complete.
  template <int LEFT> DEVICE void wait() const {
    wait_for_copies<LEFT>();
    __syncwarp();
  }
  DEVICE void arrive_at(unsigned long long* barrier) const {
    if (barrier != nullptr && threadIdx.x % 32 == 0) arrive(barrier);
  }
  DEVICE void add(unsigned long long* barrier) {
    commit_copies();
    unsigned long long* const first = barriers[0];
    UNROLL for (int i = 0; i < MOST; i++) barriers[i] = i + 1 < MOST ? barriers[i + 1] : barrier;
    if (first == nullptr) return;
    wait<MOST>();
    arrive_at(first);
  }
  DEVICE void finish() {
    wait<0>();
    UNROLL for (int i = 0; i < MOST; i++) arrive_at(barriers[i]), barriers[i] = nullptr;
  }
};

// A warpgroup copies inputs of the block's strips, a step of each in turn: a thread 8 channels of a column.
DEVICE void copy_inputs(const Geometry& g, const Block& block, const Element* x) {
  // Eight threads write two pixels' halves, so that these are in all banks.
  const int thread = threadIdx.x - CONSUMING, group = thread % 4 + thread / 8 % 2 * 4;
  const int place = thread / 4 % 2 + thread / 16 * 2;
  int slot = 0, turn = 0;
  Begun begun;
  for (int begin = CONSUMERS * blockIdx.x; begin < g.strips; begin += CONSUMERS * g.blocks)
    for (int step = -1; step < g.steps; step++)
      for (int number = begin; number < begin + CONSUMERS && number < g.strips; number++) {
        const Strip strip(g, number);
        const int first = step * ROWS + 1, column = strip.column - 1 + place;
        const Element* from = x + (((long long)strip.image * g.height + first) * g.width + column) * WIDE + group * 8;
        for (int chunk = 0; chunk < CHUNKS; chunk++) {
          unsigned char* to = block.bytes + RING + slot * SLOT + group * SLOT_PITCH + place * 16;
          // Who empties it may wait for what was begun.
          if (!__all_sync(0xffffffffu, is_past(block.empty + slot, turn ^ 1))) {
            begun.finish();
            wait_at(block.empty + slot, turn ^ 1);
          }
          UNROLL for (int i = 0; i < ROWS; i++) {
            const int row = first + i;
            const bool inside = row >= 0 && row < g.height && column >= 0 && column < g.width;
            copy<16>(to + i * STAGED * 16, inside ? from + i * g.width * WIDE + chunk * CHUNK : x, inside);
          }
          begun.add(block.full + (number - begin) * SLOTS + slot);
          if (++slot == SLOTS) slot = 0, turn ^= 1;
        }
      }
  begun.finish();
}

DEVICE void consume(const Geometry& g, const Block& block, Element* y) {
  const Consumer own(block);
  // Chunks of all warpgroups, of which this one's next is `chunk`.
  int chunk = own.number * CHUNKS;
  unsigned turns = 0;
  for (int begin = CONSUMERS * blockIdx.x; begin + own.number < g.strips; begin += CONSUMERS * g.blocks) {
    const Strip strip(g, begin + own.number);
    for (int step = -1; step < g.steps; step++) {
      Sums sums;
      unsigned outputs[16];
      Pixels x[CHUNKS];
      own.reduce(chunk, turns, sums, x);
      chunk += CHUNKS * min(CONSUMERS, g.strips - begin);
      // The rows of the step before are where they belong.
      own.meet_all();
      own.keep(g, strip, step, sums);
      show_tensor_cores();
      own.meet_all();
      if (step >= 0) {
        own.convolve(sums, outputs, x);
        own.meet_all();
      } else {
        own.exchange(x);
      }
      own.keep_rows();
      if (step >= 0) Expansion(g, own, strip, step).run(outputs, x, y, sums);
    }
  }
}

DEVICE void bottleneck(const Geometry& g, const Element* __restrict__ x, const int4* __restrict__ weights,
                       const Element*, const Element*, Element* __restrict__ y) {
  SHARED_MEMORY;
  unsigned char* const bytes = (unsigned char*)shared;
  unsigned long long* const handed = (unsigned long long*)(bytes + HANDED);
  const Block block = {bytes, handed, handed + CONSUMERS * SLOTS};
  if (threadIdx.x < CONSUMERS * SLOTS) begin_barrier(block.full + threadIdx.x, COPYING / 32);
  if (threadIdx.x < SLOTS) begin_barrier(block.empty + threadIdx.x, 4);
  __syncthreads();
  launch_next();
  if (same_of_all(threadIdx.x >> 7) == CONSUMERS) {
    give_registers<OTHERS>();
    wait_for_kernel();
    copy_inputs(g, block, x);
  } else {
    take_registers<REGISTERS>();
    for (int i = threadIdx.x; i < PACKED / 16; i += CONSUMING) copy<16>(bytes + 16 * i, weights + i, true);
    commit_copies();
    wait_for_copies<0>();
    show_tensor_cores();
    barrier_sync(1 + CONSUMERS, CONSUMING);
    wait_for_kernel();
    consume(g, block, y);
  }
}

}  // namespace tvm_sparse
