// Linear layers on many images, weights as data: one kernel for every shape, weight and tile of `linear_cuda`'s second
// space.
//
// A block of 16 warps computes `filters` outputs of 32 P images. The lanes of a warp have P images each, and a warp
// takes one filter after the other: all lanes read four (value, offset) by two 16-byte loads, and for each the P inputs
// of their images side by side. So shared memory is the bound: P accesses a non-zero and half of one for what is read
// of the weight. Where V filters share their non-zeros, or where nothing is zero, their V weights share the read.
//
// Inputs come chunk by chunk. They lie in memory image after image, so they are turned on their way: a thread reads
// four inputs of an image into registers while the chunk before is computed, then writes them to four rows of shared
// memory. A row's images are exchanged by an exclusive or with bits of the row's number, which is part of the offset,
// so that neither way has bank conflicts. Behind a chunk there is a row of zeros, which is what a step is filled up
// with.
//
// A warp's weights are one stream of steps, through a ring in shared memory that the warp fills itself. A filter's
// steps begin with one that holds how many there are and which of the block's sums they belong to. Sums stay in shared
// memory. So any warp may take any filter of a chunk, and they are dealt out so that all warps come to a chunk's end
// together.
//
// Blocks that share the inputs (`parts`) are a cluster: at the end each sends its sums to the block that adds them up.
//
// Its integers are declared in scheduling/cuda/linear/kernels.py.

#include "device/kernel.cuh"
#include "device/cluster.cuh"
#include "device/epilogue.cuh"
#include "device/pipeline.cuh"

namespace tvm_sparse {

// Warps of a block, and buffers of a warp's ring.
constexpr int WARPS = 16, SLOTS = 3, THREADS = 32 * WARPS;

// P images of a lane, as they lie side by side.
template <int P> struct __align__(4 * P) Inputs {
  float of[P];
};

// Units of a step of four positions: two (value, offset) each, or four offsets, then V values of each position. Steps
// of a ring's buffer, one unit a lane.
template <int V> constexpr int UNITS = V == 1 ? 2 : V + 1;
template <int V> constexpr int STEPS = 32 / UNITS<V>;

// What a step begins with: two (value, offset) and another two, or four offsets.
template <int V> struct Head {
  int4 units[V == 1 ? 2 : 1];
};

// A warp's stream of steps, of which one is read ahead. Of a ring's buffers one is being read, one is there or on its
// way, and the one that was read before is filled again.
template <int V> struct Stream {
  static constexpr int SLOT = UNITS<V> * STEPS<V>;
  int4* ring;
  const int4* from;
  int lane, left_slots, slot, left;
  const int4* next;
  Head<V> ahead;

  DEVICE void fetch(int to) {
    if (left_slots > 0 && lane < SLOT) copy<16>(ring + to * SLOT + lane, from + lane, true);
    from += SLOT, left_slots--;
    commit_copies();
  }
  DEVICE void start() {
    fetch(0), fetch(1);
    slot = 0, left = STEPS<V>, next = ring;
    wait_for_copies<1>();
    __syncwarp();
    ahead = *(const Head<V>*)next;
  }
  // The step that was read ahead, and where all of it is; the one behind it is read.
  DEVICE Head<V> take(const int4*& step) {
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
DEVICE void add_step(float (&acc)[V][P], const Head<V>& head, const int4* step, const char* input, int own) {
  Inputs<P> in[4];
  if constexpr (V == 1) {
    const int4 &one = head.units[0], &two = head.units[1];
    const int at[4] = {one.y, one.w, two.y, two.w}, values[4] = {one.x, one.z, two.x, two.z};
    UNROLL for (int j = 0; j < 4; j++) in[j] = *(const Inputs<P>*)(input + (at[j] ^ own));
    UNROLL for (int j = 0; j < 4; j++)
      UNROLL for (int p = 0; p < P; p++) acc[0][p] = fmaf(BITS_AS_FLOAT(values[j]), in[j].of[p], acc[0][p]);
  } else {
    const int4& offsets = head.units[0];
    const int at[4] = {offsets.x, offsets.y, offsets.z, offsets.w};
    UNROLL for (int j = 0; j < 4; j++) in[j] = *(const Inputs<P>*)(input + (at[j] ^ own));
    UNROLL for (int j = 0; j < 4; j++)
      UNROLL for (int q = 0; q < V / 4; q++) {
        const float4 values = ((const float4*)(step + 1))[j * (V / 4) + q];
        UNROLL for (int p = 0; p < P; p++) {
          acc[4 * q][p] = fmaf(values.x, in[j].of[p], acc[4 * q][p]);
          acc[4 * q + 1][p] = fmaf(values.y, in[j].of[p], acc[4 * q + 1][p]);
          acc[4 * q + 2][p] = fmaf(values.z, in[j].of[p], acc[4 * q + 2][p]);
          acc[4 * q + 3][p] = fmaf(values.w, in[j].of[p], acc[4 * q + 3][p]);
        }
      }
  }
}

// Four inputs of an image from `x` on, of which `count` are there.
DEVICE void read_four(Element (&to)[4], const Element* x, int count, bool aligned) {
  struct __align__(4 * sizeof(Element)) Four {
    Element of[4];
  };
  if (aligned && count >= 4)
    *(Four*)to = *(const Four*)x;
  else
    UNROLL for (int j = 0; j < 4; j++) to[j] = j < count ? x[j] : narrowed(0.f);
}

// A chunk of inputs on its way: a warp reads 32 inputs of 4 images at a time, of which its lanes have four each.
template <int P> struct Chunk {
  static constexpr int IMAGES = 32 * P, INPUTS = 768 / P, READS = INPUTS * IMAGES / 4 / (32 * WARPS);
  alignas(16) Element held[READS][4];

  DEVICE void read(const Geometry& g, const Element* x, int warp, int image0, int first, int end) {
    const int lane = computed_anew(threadIdx.x & 31);
    UNROLL for (int i = 0; i < READS; i++) {
      const int tile = i * WARPS + warp, image = image0 + tile / (INPUTS / 32) * 4 + lane / 8;
      const int at = first + tile % (INPUTS / 32) * 32 + lane % 8 * 4;
      // Beyond the last image the last one's: what comes of it is not stored.
      read_four(held[i], x + (unsigned)(min(image, g.batch - 1) * g.inputs + at), end - at, g.vector == 4);
    }
  }
  DEVICE void write(float* input, int warp) const {
    const int lane = computed_anew(threadIdx.x & 31);
    UNROLL for (int i = 0; i < READS; i++) {
      const int tile = i * WARPS + warp, row = tile % (INPUTS / 32) * 32 + lane % 8 * 4;
      const int column = (tile / (INPUTS / 32) * 4 + lane / 8) ^ (lane % 8 * 4);
      UNROLL for (int j = 0; j < 4; j++) input[(row + j) * IMAGES + column] = widened(held[i][j]);
    }
  }
};

// A warp's filters of a chunk, V at a time, to the block's sums.
template <int P, int V> DEVICE void add_filters(const Geometry& g, Stream<V>& stream, const float* input, float* sums,
                                                int lane, bool is_first) {
  constexpr int PITCH = Chunk<P>::IMAGES + P;
  for (int r = 0; r < g.rows; r++) {
    const int4* step;
    const int4 head = stream.take(step).units[0];
    float acc[V][P];
    UNROLL for (int v = 0; v < V; v++)
      UNROLL for (int p = 0; p < P; p++) acc[v][p] = 0.f;
    for (int i = 0; i < head.x; i++) {
      const Head<V> found = stream.take(step);
      add_step<P, V>(acc, found, step, (const char*)input, lane * P * 4);
    }
    UNROLL for (int v = 0; v < V; v++) {
      Inputs<P>* to = (Inputs<P>*)(sums + (head.y * V + v) * PITCH + lane * P);
      Inputs<P> sum;
      UNROLL for (int p = 0; p < P; p++) sum.of[p] = is_first ? acc[v][p] : to->of[p] + acc[v][p];
      *to = sum;
    }
  }
}

// Each block's sums to those that add them up, where nobody reads inputs any more.
template <int P> DEVICE void send_sums(const Geometry& g, const float* sums, float* to, int part) {
  constexpr int IMAGES = 32 * P, PITCH = IMAGES + P;
  cluster_sync();
  for (int i = threadIdx.x; i < g.filters * IMAGES; i += 32 * WARPS) {
    const int filter = i / IMAGES, image = i % IMAGES, rank = g.own_filters.divide(filter);
    const int slot = part * g.own_filters + filter - rank * g.own_filters;
    remote_store(remote_address(to + slot * PITCH + image, rank), sums[filter * PITCH + image]);
  }
  cluster_sync();
}

template <int P> DEVICE void write_outputs(const Geometry& g, const float* sums, int image0, int filter0,
                                           const Element* bias, const Element* residual, Element* y) {
  constexpr int IMAGES = 32 * P, PITCH = IMAGES + P;
  for (int i = threadIdx.x; i < g.own_filters * IMAGES; i += 32 * WARPS) {
    const int image = g.own_filters.divide(i), filter = i - image * g.own_filters;
    const int n = image0 + image, k = filter0 + filter;
    if (n >= g.batch || k >= g.outputs) continue;
    float sum = 0.f;
    for (int p = 0; p < g.parts; p++) sum += sums[(p * g.own_filters + filter) * PITCH + image];
    const size_t to = (size_t)n * g.outputs + k;
    if (g.has_bias) sum += widened(bias[k]);
    if (g.has_residual) sum += widened(residual[to]);
    y[to] = narrowed(with_relu(g, sum));
  }
}

template <int P, int V> DEVICE void linear(const Geometry& g, const Element* __restrict__ x,
                                           const int4* __restrict__ weights, const Element* __restrict__ bias,
                                           const Element* __restrict__ residual, Element* __restrict__ y) {
  SHARED_MEMORY;
  constexpr int IMAGES = Chunk<P>::IMAGES, INPUTS = Chunk<P>::INPUTS;
  const int thread = threadIdx.x, warp = thread >> 5, lane = thread & 31, part = blockIdx.x;
  const int filter0 = blockIdx.y * g.filters, image0 = blockIdx.z * IMAGES;
  float* input = shared;
  int4* rings = (int4*)(input + (INPUTS + 1) * IMAGES);
  float* sums = (float*)(rings + WARPS * SLOTS * Stream<V>::SLOT);
  const size_t number = (size_t)(blockIdx.y * g.parts + part) * WARPS + warp;
  Stream<V> stream = {rings + warp * SLOTS * Stream<V>::SLOT, weights + number * g.stride, lane,
                      g.stride / Stream<V>::SLOT};
  stream.start();
  if (thread < IMAGES) input[INPUTS * IMAGES + thread] = 0.f;
  wait_for_kernel();
  launch_next();
  const int first = part * g.part_inputs, end = min(first + g.part_inputs, g.inputs);
  Chunk<P> ahead;
  ahead.read(g, x, warp, image0, first, end);
  for (int chunk = 0; chunk < g.chunks; chunk++) {
    ahead.write(input, warp);
    __syncthreads();
    if (chunk + 1 < g.chunks) ahead.read(g, x, warp, image0, first + (chunk + 1) * INPUTS, end);
    add_filters<P, V>(g, stream, input, sums, lane, chunk == 0);
    __syncthreads();
  }
  if (g.parts > 1) {
    send_sums<P>(g, sums, input, part);
    sums = input;
  }
  write_outputs<P>(g, sums, image0, filter0 + part * g.own_filters, bias, residual, y);
}

}  // namespace tvm_sparse
