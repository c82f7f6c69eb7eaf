// Linear layers on many images, weights as data: one kernel for every shape, weight and tile of `linear_cuda`'s second
// space.
//
// A block of 16 warps computes `filters` outputs of 32 P images. The lanes of a warp have P images each, and a warp takes
// one filter after the other: all lanes read four (value, offset) by two 16-byte loads, and for each the P inputs of
// their images side by side. So shared memory is the bound: P accesses a non-zero and half of one for what is read of the
// weight. Where V filters share their non-zeros, or where nothing is zero, their V weights share the read.
//
// Inputs come chunk by chunk. They lie in memory image after image, so they are turned on their way: a thread reads four
// inputs of an image into registers while the chunk before is computed, then writes them to four rows of shared memory.
// A row's images are exchanged by an exclusive or with bits of the row's number, which is part of the offset, so that
// neither way has bank conflicts. Behind a chunk there is a row of zeros, which is what a step is filled up with.
//
// A warp's weights are one stream of steps, through a ring in shared memory that the warp fills itself. A filter's steps
// begin with one that holds how many there are and which of the block's sums they belong to. Sums stay in shared memory.
// So any warp may take any filter of a chunk, and they are dealt out so that all warps come to a chunk's end together.
//
// Blocks that share the inputs (`parts`) are a cluster: at the end each sends its sums to the block that adds them up.
//
// Its integers are declared in scheduling/cuda/linear/kernels.py.

#include "device/kernel.cuh"
#include "device/cluster.cuh"
#include "device/epilogue.cuh"
#include "device/pipeline.cuh"

// Warps of a block, and buffers of a warp's ring.
constexpr int WARPS = 16, SLOTS = 3;

// P images of a lane, as they lie side by side.
template <int P>
struct __align__(4 * P) Inputs {
  float of[P];
};

// Units of a step of four positions: two (value, offset) each, or four offsets, then V values of each position. Steps of
// a ring's buffer, one unit a lane.
template <int V>
constexpr int UNITS = V == 1 ? 2 : V + 1;
template <int V>
constexpr int STEPS = 32 / UNITS<V>;

// What a step begins with: two (value, offset) and another two, or four offsets.
template <int V>
struct Head {
  int4 units[V == 1 ? 2 : 1];
};

// A warp's stream of steps, of which one is read ahead. Of a ring's buffers one is being read, one is there or on its
// way, and the one that was read before is filled again.
template <int V>
struct Stream {
  static constexpr int SLOT = UNITS<V> * STEPS<V>;
  int4* ring;
  const int4* from;
  int lane, left_slots, slot, left;
  const int4* next;
  Head<V> ahead;

  __device__ __forceinline__ void fetch(int to) {
    if (left_slots > 0 && lane < SLOT) copy<16>(ring + to * SLOT + lane, from + lane, true);
    from += SLOT, left_slots--;
    commit_copies();
  }
  __device__ __forceinline__ void start() {
    fetch(0), fetch(1);
    slot = 0, left = STEPS<V>, next = ring;
    wait_for_copies<1>();
    __syncwarp();
    ahead = *(const Head<V>*)next;
  }
  // The step that was read ahead, and where all of it is; the one behind it is read.
  __device__ __forceinline__ Head<V> take(const int4*& step) {
    const Head<V> found = ahead;
    step = next;
    next += UNITS<V>;
    if (--left == 0) {
      // All lanes are done with the buffer before this one.
      __syncwarp();
      fetch(slot == 0 ? SLOTS - 1 : slot - 1);
      slot = slot == SLOTS - 1 ? 0 : slot + 1;
      left = STEPS<V>, next = ring + slot * SLOT;
      wait_for_copies<1>();
      __syncwarp();
    }
    ahead = *(const Head<V>*)next;
    return found;
  }
};

// Adds the products of a step's four positions to the sums of V filters.
template <int P, int V>
__device__ __forceinline__ void add_step(float (&acc)[V][P], const Head<V>& head, const int4* step, const char* input,
                                         int own) {
  Inputs<P> in[4];
  if constexpr (V == 1) {
    const int4 &one = head.units[0], &two = head.units[1];
    const int at[4] = {one.y, one.w, two.y, two.w}, values[4] = {one.x, one.z, two.x, two.z};
#pragma unroll
    for (int j = 0; j < 4; j++) in[j] = *(const Inputs<P>*)(input + (at[j] ^ own));
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
      for (int p = 0; p < P; p++) acc[0][p] = fmaf(BITS_AS_FLOAT(values[j]), in[j].of[p], acc[0][p]);
  } else {
    const int4& offsets = head.units[0];
    const int at[4] = {offsets.x, offsets.y, offsets.z, offsets.w};
#pragma unroll
    for (int j = 0; j < 4; j++) in[j] = *(const Inputs<P>*)(input + (at[j] ^ own));
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
      for (int q = 0; q < V / 4; q++) {
        const float4 values = ((const float4*)(step + 1))[j * (V / 4) + q];
#pragma unroll
        for (int p = 0; p < P; p++) {
          acc[4 * q][p] = fmaf(values.x, in[j].of[p], acc[4 * q][p]);
          acc[4 * q + 1][p] = fmaf(values.y, in[j].of[p], acc[4 * q + 1][p]);
          acc[4 * q + 2][p] = fmaf(values.z, in[j].of[p], acc[4 * q + 2][p]);
          acc[4 * q + 3][p] = fmaf(values.w, in[j].of[p], acc[4 * q + 3][p]);
        }
      }
  }
}

// Four inputs of an image from `x` on, of which `count` are there.
__device__ __forceinline__ void read_four(Element (&to)[4], const Element* x, int count, bool aligned) {
  struct __align__(4 * sizeof(Element)) Four {
    Element of[4];
  };
  if (aligned && count >= 4)
    *(Four*)to = *(const Four*)x;
  else
#pragma unroll
    for (int j = 0; j < 4; j++) to[j] = j < count ? x[j] : narrowed(0.f);
}

template <int P, int V>
__device__ __forceinline__ void linear(const Geometry& g, const Element* __restrict__ x,
                                       const int4* __restrict__ weights, const Element* __restrict__ bias,
                                       const Element* __restrict__ residual, Element* __restrict__ y) {
  SHARED_MEMORY;
  constexpr int IMAGES = 32 * P, CHUNK = 768 / P, PITCH = IMAGES + P, READS = CHUNK * IMAGES / 4 / (32 * WARPS);
  const int thread = threadIdx.x, warp = thread >> 5, lane = thread & 31, part = blockIdx.x;
  const int filter0 = blockIdx.y * g.filters, image0 = blockIdx.z * IMAGES;
  float* input = shared;
  int4* rings = (int4*)(input + (CHUNK + 1) * IMAGES);
  float* sums = (float*)(rings + WARPS * SLOTS * Stream<V>::SLOT);
  const size_t number = (size_t)(blockIdx.y * g.parts + part) * WARPS + warp;
  Stream<V> stream = {rings + warp * SLOTS * Stream<V>::SLOT, weights + number * g.stride, lane,
                      g.stride / Stream<V>::SLOT};
  stream.start();
  if (thread < IMAGES) input[CHUNK * IMAGES + thread] = 0.f;
  wait_for_kernel();
  launch_next();
  const int first = part * g.part_inputs, end = min(first + g.part_inputs, g.inputs);
  // A warp reads 32 inputs of 4 images at a time: its lanes have four each.
  alignas(16) Element held[READS][4];
  auto read = [&](int chunk) {
    const int lane = computed_anew(threadIdx.x & 31);
#pragma unroll
    for (int i = 0; i < READS; i++) {
      const int tile = i * WARPS + warp, image = image0 + tile / (CHUNK / 32) * 4 + lane / 8;
      const int at = first + chunk * CHUNK + tile % (CHUNK / 32) * 32 + lane % 8 * 4;
      // Beyond the last image the last one's: what comes of it is not stored.
      read_four(held[i], x + (unsigned)(min(image, g.batch - 1) * g.inputs + at), end - at, g.vector == 4);
    }
  };
  read(0);
  const int own = lane * P * 4;
  for (int chunk = 0; chunk < g.chunks; chunk++) {
    const int lane = computed_anew(threadIdx.x & 31);
#pragma unroll
    for (int i = 0; i < READS; i++) {
      const int tile = i * WARPS + warp, row = tile % (CHUNK / 32) * 32 + lane % 8 * 4;
      const int column = (tile / (CHUNK / 32) * 4 + lane / 8) ^ (lane % 8 * 4);
#pragma unroll
      for (int j = 0; j < 4; j++) input[(row + j) * IMAGES + column] = widened(held[i][j]);
    }
    __syncthreads();
    if (chunk + 1 < g.chunks) read(chunk + 1);
    for (int r = 0; r < g.rows; r++) {
      const int4* step;
      const int4 head = stream.take(step).units[0];
      float acc[V][P];
#pragma unroll
      for (int v = 0; v < V; v++)
#pragma unroll
        for (int p = 0; p < P; p++) acc[v][p] = 0.f;
      for (int i = 0; i < head.x; i++) {
        const Head<V> found = stream.take(step);
        add_step<P, V>(acc, found, step, (const char*)input, own);
      }
#pragma unroll
      for (int v = 0; v < V; v++) {
        Inputs<P>* to = (Inputs<P>*)(sums + (head.y * V + v) * PITCH + lane * P);
        Inputs<P> sum;
#pragma unroll
        for (int p = 0; p < P; p++) sum.of[p] = chunk ? to->of[p] + acc[v][p] : acc[v][p];
        *to = sum;
      }
    }
    __syncthreads();
  }
  if (g.parts > 1) {
    // All blocks are done with their inputs, whose place the others' sums take.
    cluster_sync();
    for (int i = thread; i < g.filters * IMAGES; i += 32 * WARPS) {
      const int filter = i / IMAGES, image = i % IMAGES, rank = g.own_filters.divide(filter);
      const int slot = part * g.own_filters + filter - rank * g.own_filters;
      remote_store(remote_address(input + slot * PITCH + image, rank), sums[filter * PITCH + image]);
    }
    cluster_sync();
    sums = input;
  }
  for (int i = thread; i < g.own_filters * IMAGES; i += 32 * WARPS) {
    const int image = g.own_filters.divide(i), filter = i - image * g.own_filters;
    const int n = image0 + image, k = filter0 + part * g.own_filters + filter;
    if (n >= g.batch || k >= g.outputs) continue;
    float sum = 0.f;
    for (int p = 0; p < g.parts; p++) sum += sums[(p * g.own_filters + filter) * PITCH + image];
    const size_t to = (size_t)n * g.outputs + k;
    if (g.has_bias) sum += widened(bias[k]);
    if (g.has_residual) sum += widened(residual[to]);
    y[to] = narrowed(with_relu(g, sum));
  }
}

// A kernel for each number of images a lane and of filters that share their non-zeros.
#define LINEAR(P, V) KERNEL(32 * WARPS, 1, tvm_sparse_linear_##P##_##V, linear<P, V>)
LINEAR(1, 1)
LINEAR(2, 1)
LINEAR(4, 1)
LINEAR(1, 4)
LINEAR(2, 4)
LINEAR(4, 4)
LINEAR(1, 8)
LINEAR(2, 8)
