// Linear layers on many images, on tensor cores, weights as data: one kernel for every shape, weight and tile of
// `linear_tensor_cuda`.
//
// A block computes F filters of 64 or 128 images. Two warpgroups multiply (`wgmma`): the rows of A are 64 images, whose
// inputs a thread reads from memory right into the registers of a product, and the columns of B are the filters, whose
// weights two other warpgroups write to shared memory, K_BLOCK inputs (a k-block) of all filters at a time, through a
// ring of `STAGES` k-blocks. So weights are read sparse and multiplied dense: of a sparse layer a producer has a list
// of (place, value) for each k-block, and what it writes it makes zero again when the k-block has been multiplied. Of
// 64 images the multiplying warpgroups take every second k-block each, of 128 images each its own of every k-block.
//
// In float32 each number is the sum of a TF32 number, its high part, and of what is cut off, its low part:
// `high * high` in TF32, the corrections `low * all + high * low` in bfloat16, whose rounding is that much smaller. So
// a weight is written twice, as it is and as the two columns (low, high) of a product in bfloat16.
//
// Blocks that share a tile's k-blocks (`parts`) are a cluster: at the end each adds up some of the sums of all.
//
// Its integers are declared in scheduling/cuda/linear_tensor/kernels.py.

#include "device/kernel.cuh"
#include "device/cluster.cuh"
#include "device/epilogue.cuh"
#include "device/pipeline.cuh"
#include "device/split.cuh"
#include "device/wgmma.cuh"

namespace tvm_sparse {

// K-blocks of the ring; warpgroups that consume, and that produce; threads that consume.
constexpr int STAGES = 4, CONSUMERS = 2, PRODUCERS = 2;
using Role = Roles<CONSUMERS, PRODUCERS, 80>;
constexpr int CONSUMING = Role::CONSUMING, THREADS = Role::THREADS;
// Barriers: of a k-block that is full for a group of images, of one that is empty, of each producer's threads, and of
// sums.
constexpr int FULL = 1, EMPTY = FULL + 2 * STAGES, WRITTEN = EMPTY + STAGES, STAGED = WRITTEN + PRODUCERS;
static_assert(STAGED < BARRIERS);

#ifndef TVM_SPARSE_EMULATED
// 64 rows of A in registers times F columns of B in shared memory.
#define PRODUCT(NAME, KIND, LAST, F, SUMS)                                                               \
  DEVICE void NAME(float (&sums)[SUMS], const unsigned (&a)[4], unsigned long long b) {                  \
    WGMMA(".sync.aligned.m64n" #F KIND, SUMS, A_AND_B_##SUMS ", 1, 1, 1" LAST, IN_REGISTERS(a), "l"(b)); \
  }
#define PRODUCTS(F, SUMS)                               \
  PRODUCT(add_product, "k8.f32.tf32.tf32", "", F, SUMS) \
  PRODUCT(add_corrections, "k16.f32.bf16.bf16", ", 0", F, SUMS)
PRODUCTS(64, 32)
PRODUCTS(128, 64)
PRODUCTS(144, 72)
#endif

// What all of a block knows. In shared memory: the ring, each k-block F * K_BLOCK weights as they are and as many as
// corrections; lists, as they come from memory; where lists begin.
template <int F> struct Block {
  static constexpr int K_BLOCK = 32, STEPS = K_BLOCK / 8, PART = F * K_BLOCK * 4, BUFFER = 2 * PART;
  // Quads of (place, value) of a list that there is room for, a third of the k-block: the rest is read when it is
  // needed. And how many lists a producer asks for ahead, besides those of k-blocks that are in the ring.
  static constexpr int ROOM = PART / 48 / 32 * 32, AHEAD = F == 64 ? 6 : 2;
  static constexpr int LISTS = STAGES + PRODUCERS * AHEAD, LIST_BYTES = 24 * ROOM, LISTS_AT = STAGES * BUFFER;
  static constexpr int TABLE_AT = LISTS_AT + LISTS * LIST_BYTES;

  int part, tile, first_image, first_filter;
  // Of this block's part; the first one is a different one for each tile, as those who read the same inputs at a time
  // wait for each other.
  int begin, k_blocks, first_k_block;
  char* ring;

  DEVICE Block(const Geometry& g, char* shared) : ring(shared) {
    part = blockIdx.x, tile = blockIdx.y, first_image = blockIdx.z * 64 * g.groups, first_filter = tile * F;
    begin = g.k_blocks * part / g.parts, k_blocks = g.k_blocks * (part + 1) / g.parts - begin;
    first_k_block = (unsigned)tile % (unsigned)k_blocks;
  }
  // The k-block that comes so many after the first, of this block's.
  DEVICE int k_block_of(int number) const {
    const int k_block = first_k_block + number;
    return k_block < k_blocks ? k_block : k_block - k_blocks;
  }
  DEVICE char* buffer(int number) const { return ring + number % STAGES * BUFFER; }
  DEVICE int handing(const Geometry& g) const { return 128 + 128 * g.groups; }
};

// What a thread has written of a k-block is there for who consumes it.
DEVICE void hand_over(const Geometry& g, int number) {
  show_tensor_cores();
  for (int group = 0; group < g.groups; group++) {
    // Of 64 images one warpgroup has the k-block: it is the one that has every second k-block from this one on.
    const int reader = g.groups == 1 ? number % CONSUMERS : group;
    barrier_arrive(FULL + reader * STAGES + number % STAGES, 256);
  }
}

// Every second k-block of a dense layer, whose weights lie as they are multiplied.
template <int F> DEVICE void write_dense(const Geometry& g, const Block<F>& block, const int4* weights, int producer) {
  using B = Block<F>;
  // A thread's reads of a k-block, and k-blocks that are read ahead: memory needs 32 KB on their way to a
  // multiprocessor.
  constexpr int UNITS = B::PART / 16, READS = UNITS / 128, AHEAD = F == 64 ? 2 : 1;
  const int thread = threadIdx.x & 127;
  const int4* const own = weights + (size_t)(block.tile * g.k_blocks + block.begin) * UNITS + thread;
  unsigned held[AHEAD][READS][4];
  auto read = [&](int number, unsigned (&to)[READS][4]) {
    if (number >= block.k_blocks) return;
    const int4* from = own + (size_t)block.k_block_of(number) * UNITS;
    UNROLL for (int i = 0; i < READS; i++) read_early(to[i], from + 128 * i);
  };
  UNROLL for (int i = 0; i < AHEAD; i++) read(producer + i * PRODUCERS, held[i]);
  for (int start = producer; start < block.k_blocks; start += AHEAD * PRODUCERS) {
    UNROLL for (int i = 0; i < AHEAD; i++) {
      const int number = start + i * PRODUCERS;
      if (number >= block.k_blocks) break;
      if (number >= STAGES) barrier_sync(EMPTY + number % STAGES, block.handing(g));
      char* to = block.buffer(number) + thread * 16;
      UNROLL for (int j = 0; j < READS; j++) {
        const unsigned (&own)[4] = held[i][j];
        unsigned low[4];
        UNROLL for (int k = 0; k < 4; k++) low[k] = weight_corrections(BITS_AS_FLOAT(own[k]));
        *(uint4*)(to + 2048 * j) = make_uint4(own[0], own[1], own[2], own[3]);
        *(uint4*)(to + 2048 * j + B::PART) = make_uint4(low[0], low[1], low[2], low[3]);
      }
      read(number + AHEAD * PRODUCERS, held[i]);
      hand_over(g, number);
    }
  }
}

// Four places in a k-block, in bytes.
struct __align__(8) Places {
  unsigned short of[4];
};

// A sparse layer's weights: where each k-block's list begins, in quads of (place, value), and where the last one ends;
// all values; all places.
template <int F> struct Lists {
  using B = Block<F>;
  const Block<F>& block;
  const float4* values;
  const Places* places;
  const int* table;
  int thread;

  DEVICE Lists(const Geometry& g, const Block<F>& block, const int4* weights)
      : block(block), thread(threadIdx.x & 127) {
    const int lists = g.tiles * g.k_blocks;
    values = (const float4*)weights + (lists + 4) / 4;
    places = (const Places*)(values + ((const int*)weights)[lists]);
    table = (const int*)(block.ring + B::TABLE_AT);
  }
  DEVICE char* room(int number) const { return block.ring + B::LISTS_AT + number % B::LISTS * B::LIST_BYTES; }
  // A thread copies what it uses itself, so nobody else waits for it.
  DEVICE void fetch(int number) const {
    if (number < block.k_blocks) {
      const int k_block = block.k_block_of(number), begin = table[k_block],
                count = min(table[k_block + 1] - begin, B::ROOM);
      char* to = room(number);
      for (int i = thread; i < count; i += 128) {
        copy<16>(to + i * 16, values + begin + i, true);
        copy<8>(to + B::ROOM * 16 + i * 8, places + begin + i, true);
      }
    }
    commit_copies();
  }
  // Writes a k-block's values, or zeros where they are.
  template <bool ZEROS> DEVICE void write(int number) const {
    const int k_block = block.k_block_of(number), begin = table[k_block], count = table[k_block + 1] - begin;
    const char* from = room(number);
    char* to = block.buffer(number);
    for (int i = thread; i < count; i += 128) {
      Places at;
      float4 value = make_float4(0.f, 0.f, 0.f, 0.f);
      if (i < B::ROOM) {
        at = ((const Places*)(from + B::ROOM * 16))[i];
        if (!ZEROS) value = ((const float4*)from)[i];
      } else {
        at = places[begin + i];
        if (!ZEROS) value = values[begin + i];
      }
      const float four[4] = {value.x, value.y, value.z, value.w};
      UNROLL for (int j = 0; j < 4; j++) {
        *(float*)(to + at.of[j]) = four[j];
        *(unsigned*)(to + at.of[j] + B::PART) = ZEROS ? 0 : weight_corrections(four[j]);
      }
    }
  }
};

// Every second k-block of a sparse layer. A k-block's place is zeros but for what its last list says.
template <int F> DEVICE void write_lists(const Geometry& g, const Block<F>& block, const int4* weights, int producer) {
  using B = Block<F>;
  const Lists<F> lists(g, block, weights);
  for (int i = 0; i < B::AHEAD; i++) lists.fetch(producer + i * PRODUCERS);
  for (int number = producer; number < block.k_blocks; number += PRODUCERS) {
    if (number < STAGES) {
      int4* to = (int4*)block.buffer(number);
      for (int i = lists.thread; i < B::BUFFER / 16; i += 128) to[i] = make_int4(0, 0, 0, 0);
    } else {
      barrier_sync(EMPTY + number % STAGES, block.handing(g));
      lists.template write<true>(number - STAGES);
    }
    barrier_sync(WRITTEN + producer, 128);
    // In the place of the list of zeros.
    lists.fetch(number + B::AHEAD * PRODUCERS);
    wait_for_copies<B::AHEAD>();
    lists.template write<false>(number);
    hand_over(g, number);
  }
}

// A thread's inputs of a k-block: of two images, every fourth four of its inputs. They are in the order in which a
// product takes them, so that of four side by side the first two are of one k-step.
template <int F> struct Inputs {
  unsigned of[Block<F>::STEPS][4];

  DEVICE void read(const Geometry& g, const float* const (&images)[2], int first) {
    UNROLL for (int step = 0; step < Block<F>::STEPS; step += 2)
      UNROLL for (int image = 0; image < 2; image++) {
        // Behind the last input any: weights are zero there.
        const int at = first + step * 8;
        unsigned four[4];
        if (g.vector == 4)
          read_early(four, (const int4*)(images[image] + min(at, g.inputs - 4)));
        else
          UNROLL for (int j = 0; j < 4; j++) four[j] = FLOAT_AS_BITS(images[image][min(at + j, g.inputs - 1)]);
        of[step][image] = four[0], of[step][image + 2] = four[1];
        of[step + 1][image] = four[2], of[step + 1][image + 2] = four[3];
      }
  }
};

// The same as the registers of A, of which tensor cores cut off themselves what is low, and as corrections.
template <int F> struct Operands {
  unsigned high[Block<F>::STEPS][4], corrections[Block<F>::STEPS][4];

  DEVICE void take(const Inputs<F>& inputs) {
    UNROLL for (int step = 0; step < Block<F>::STEPS; step++)
      UNROLL for (int j = 0; j < 4; j++) {
        high[step][j] = inputs.of[step][j];
        computed(high[step][j]);
        const float value = BITS_AS_FLOAT(high[step][j]);
        corrections[step][j] = input_corrections(value);
        computed(corrections[step][j]);
      }
  }
};

// Asks for the products of 64 images with all filters, in a k-block.
template <int F> DEVICE void add_k_block(float (&sums)[F / 2], const Operands<F>& operands, const char* k_block) {
  using B = Block<F>;
  const unsigned high_at = lower_half(shared_address(k_block), F * 16), low_at = high_at + (B::PART >> 4);
  begin_products();
  UNROLL for (int step = 0; step < B::STEPS; step++) {
    add_corrections(sums, operands.corrections[step], descriptor(low_at + step * 2 * F));
    add_product(sums, operands.high[step], descriptor(high_at + step * 2 * F));
  }
  commit_products();
}

// Products of 64 images with all filters, of every k-block or every second one. While a k-block's products are on their
// way the operands of the next are made, of inputs that were asked for another k-block earlier.
template <int F> DEVICE void multiply(const Geometry& g, const Block<F>& block, const float* x, float (&sums)[F / 2]) {
  using B = Block<F>;
  const int warpgroup = threadIdx.x >> 7, lane = threadIdx.x & 31;
  const int own = g.groups == 1 ? 0 : warpgroup, first = g.groups == 1 ? warpgroup : 0, turns = CONSUMERS / g.groups;
  const int image = block.first_image + own * 64 + (threadIdx.x >> 5 & 3) * 16 + (lane >> 2);
  // Beyond the last image the last one: what comes of it is not stored.
  const float* const images[2] = {x + (size_t)min(image, g.batch - 1) * g.inputs,
                                  x + (size_t)min(image + 8, g.batch - 1) * g.inputs};
  Inputs<F> ahead;
  Operands<F> operands[2];
  auto read = [&](int number) {
    if (number < block.k_blocks)
      ahead.read(g, images, (block.begin + block.k_block_of(number)) * B::K_BLOCK + (lane & 3) * 4);
  };
  wait_for_kernel();
  read(first);
  operands[0].take(ahead);
  read(first + turns);
  for (int start = first; start < block.k_blocks; start += 2 * turns) {
    UNROLL for (int i = 0; i < 2; i++) {
      const int number = start + i * turns;
      if (number >= block.k_blocks) break;
      barrier_sync(FULL + warpgroup * STAGES + number % STAGES, 256);
      add_k_block(sums, operands[i], block.buffer(number));
      wait_for_products<1>();
      // The k-block before is multiplied: its place and its operands' registers are free.
      const int before = number - turns;
      if (before >= 0 && before + STAGES < block.k_blocks) barrier_arrive(EMPTY + before % STAGES, block.handing(g));
      // Behind the last k-block too, for nothing: with a branch here ptxas has products wait for each other.
      operands[1 - i].take(ahead);
      read(number + 2 * turns);
    }
  }
  wait_for_products<0>();
  UNROLL for (int i = 0; i < F / 2; i++) computed(sums[i]);
}

// Warpgroups that multiply, alone: those that write weights do not touch the ring any more.
DEVICE void sync_consumers() { barrier_sync(STAGED, CONSUMING); }

// Each warpgroup's sums, 64 images of F filters, are rows in shared memory, in the ring, which nobody reads any more.
template <int F> DEVICE void stage_sums(const Block<F>& block, const float (&sums)[F / 2]) {
  constexpr int PITCH = F + 8;
  const int lane = threadIdx.x & 31, row = (threadIdx.x >> 5) * 16 + (lane >> 2);
  float* const staged = (float*)block.ring + row * PITCH + (lane & 3) * 2;
  sync_consumers();
  UNROLL for (int i = 0; i < F / 4; i++)
    *(float2*)(staged + (i & 1) * 8 * PITCH + (i >> 1) * 8) = make_float2(sums[2 * i], sums[2 * i + 1]);
}

// Blocks that share a tile's k-blocks write some of its outputs each, neighbouring lanes neighbouring filters. Of 64
// images both warpgroups have sums.
template <int F>
DEVICE void write_sums(const Geometry& g, const Block<F>& block, const float* bias, const float* residual, float* y) {
  constexpr int PITCH = F + 8, AT_ONCE = 3, STEP = AT_ONCE * CONSUMING;
  const float* const staged = (const float*)block.ring;
  const int count = min(64 * g.groups, g.batch - block.first_image) * F;
  for (int start = block.part * STEP + threadIdx.x; start < count; start += g.parts * STEP) {
    float total[AT_ONCE];
    int from[AT_ONCE], to[AT_ONCE];
    UNROLL for (int i = 0; i < AT_ONCE; i++) {
      const int index = min(start + i * CONSUMING, count - 1), row = index / F;
      const int filter = block.first_filter + index % F;
      const bool is_output = start + i * CONSUMING < count && filter < g.outputs;
      from[i] = row * PITCH + index % F;
      to[i] = is_output ? (block.first_image + row) * g.outputs + filter : -1;
      total[i] = g.has_bias && is_output ? bias[filter] : 0.f;
      if (g.has_residual && is_output) total[i] += residual[to[i]];
    }
    for (int other = 0; other < g.parts; other++)
      for (int half = 0; half < CONSUMERS / g.groups; half++)
        UNROLL for (int i = 0; i < AT_ONCE; i++) {
          const float* const sum = staged + half * 64 * PITCH + from[i];
          total[i] += load_of(sum, other, g.parts);
        }
    UNROLL for (int i = 0; i < AT_ONCE; i++)
      if (to[i] >= 0) y[to[i]] = with_relu(g, total[i]);
  }
}

template <int F, bool DENSE> DEVICE void linear(const Geometry& g, const float* __restrict__ x,
                                                const int4* __restrict__ weights, const float* __restrict__ bias,
                                                const float* __restrict__ residual, float* __restrict__ y) {
  SHARED_MEMORY;
  using B = Block<F>;
  const B block(g, (char*)shared);
  if (!DENSE) {
    const int* begins = (const int*)weights + block.tile * g.k_blocks + block.begin;
    for (int i = threadIdx.x; i <= block.k_blocks; i += blockDim.x) ((int*)(block.ring + B::TABLE_AT))[i] = begins[i];
    __syncthreads();
  }
  launch_next();
  const int warpgroup = threadIdx.x >> 7;
  if (warpgroup >= CONSUMERS) {
    Role::become_producer();
    if (DENSE)
      write_dense(g, block, weights, warpgroup - CONSUMERS);
    else
      write_lists(g, block, weights, warpgroup - CONSUMERS);
    if (g.parts > 1) cluster_sync();
  } else {
    Role::become_consumer();
    float sums[F / 2];
    UNROLL for (int i = 0; i < F / 2; i++) sums[i] = 0.f;
    multiply(g, block, x, sums);
    stage_sums(block, sums);
    if (g.parts > 1)
      cluster_sync();
    else
      sync_consumers();
    write_sums(g, block, bias, residual, y);
  }
  // Until nobody reads sums of this block any more.
  if (g.parts > 1) leave_cluster();
}

}  // namespace tvm_sparse
