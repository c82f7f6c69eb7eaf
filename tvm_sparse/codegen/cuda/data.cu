// Convolutions whose non-zero weights are data: one kernel for every shape, weight and tile of `data_cuda`, and with
// TVM_SPARSE_VECTORS of `vector_cuda`.
//
// A thread block computes `filters` output channels of a tile of pixels. It copies its weights to shared memory, which
// needs nothing of the kernel before it, waits for that kernel, and copies its part of the input beside them. Then a
// warp takes one filter after the other. Its lanes have neighbouring pixels, 32 of them P times. For each pair of
// non-zeros all lanes read two (value, offset) by one 16-byte load, and for each non-zero P inputs at `offset` from
// their pixels. A tile lies in shared memory, in float32, so that a lane's neighbour reads the next float, across the ends of
// rows too: what a lane computes between rows is not stored. So reads have no bank conflicts, and the P inputs of a lane
// differ by a constant that is part of the instruction.
//
// Where V filters share their non-zeros, a warp takes V of them at a time: a position's P inputs are read once for all,
// and its V weights by 16-byte loads, for V P multiply-adds. Of one filter alone reads of shared memory are the bound,
// one a multiply-add and lane; of 8 filters and 8 pixels a lane 10.5 reads serve 64.
//
// Blocks that share the input channels (`parts`) are a cluster: each sends a filter's partial sums to the block that
// adds them up.
//
// Its integers are declared in scheduling/cuda/data/kernels.py.

#include "device/kernel.cuh"
#include "device/cluster.cuh"
#include "device/epilogue.cuh"
#include "device/pipeline.cuh"

namespace tvm_sparse {

enum { PLANES, ROWS, RUN };

// Threads of a block: sums of several filters take more registers than 1024 may have.
#ifdef TVM_SPARSE_VECTORS
constexpr int THREADS = 512;
#else
constexpr int THREADS = 1024;
#endif

// Where a copy of some elements of the input goes, and whence; zeros where not `inside`.
struct Copy {
  float* to;
  const Element* from;
  bool inside;
};

// All copies of a block, V elements at a time, each where `copy_of` its number says.
template <int V, typename CopyOf> DEVICE void stage_all(const Geometry& g, int thread, int threads, CopyOf copy_of) {
#ifdef TVM_SPARSE_HALF
  // Numbers are widened on the way, through registers: some reads are under way before any is waited for.
  constexpr int AT_ONCE = 4;
  struct alignas(V * sizeof(Element)) Elements {
    Element at[V];
  };
  for (int first = thread; first < g.vectors; first += AT_ONCE * threads) {
    Elements read[AT_ONCE];
    Copy copies[AT_ONCE];
    UNROLL for (int j = 0; j < AT_ONCE; j++) {
      const int i = first + j * threads;
      copies[j] = i < g.vectors ? copy_of(i) : Copy{nullptr, nullptr, false};
      if (copies[j].inside) read[j] = *(const Elements*)copies[j].from;
    }
    UNROLL for (int j = 0; j < AT_ONCE; j++)
      if (copies[j].to)
        UNROLL for (int k = 0; k < V; k++) copies[j].to[k] = copies[j].inside ? widened(read[j].at[k]) : 0.f;
  }
#else
  for (int i = thread; i < g.vectors; i += threads) {
    const Copy each = copy_of(i);
    copy<4 * V>(each.to, each.from, each.inside);
  }
#endif
}

// Rows of the input as they lie in memory, V elements at a time, behind `lead` zeros that pad this row and the one
// before. With a row stride, rows whose outputs follow each other lie together, as planes.
template <int V>
DEVICE void stage_rows(const Geometry& g, const Element* x, float* input, int y0, int x0, int thread, int threads) {
  stage_all<V>(g, thread, threads, [&](int i) {
    int c = g.per_channel.divide(i), rest = i - c * g.per_channel;
    int row = g.per_row.divide(rest), column = (rest - row * g.per_row) * V;
    int plane = g.plane_rows.divide(row);
    int in_y = (y0 + row - plane * g.plane_rows) * g.stride_h + plane - g.pad_h, in_x = x0 + column;
    bool inside = (unsigned)in_y < (unsigned)g.in_h && in_x < g.in_w;
    return Copy{input + c * g.channel_pitch + row * g.row_pitch + g.lead + column,
                x + (inside ? c * g.channel + in_y * g.in_w + in_x : 0), inside};
  });
}

// One element at a time: with strides, each residue of row and column is a plane, in which an output's neighbour reads
// the next float.
DEVICE void stage_planes(const Geometry& g, const Element* x, float* input, int y0, int x0, int thread, int threads) {
  stage_all<1>(g, thread, threads, [&](int i) {
    int c = g.per_channel.divide(i), rest = i - c * g.per_channel;
    int plane = g.plane.divide(rest), place = rest - plane * g.plane;
    int row = g.pitch.divide(place), column = place - row * g.pitch;
    int plane_y = g.planes_w.divide(plane), plane_x = plane - plane_y * g.planes_w;
    int in_y = (y0 + row) * g.stride_h + plane_y - g.pad_h, in_x = (x0 + column) * g.stride_w + plane_x - g.pad_w;
    bool inside = (unsigned)in_y < (unsigned)g.in_h && (unsigned)in_x < (unsigned)g.in_w;
    return Copy{input + c * g.channel_pitch + rest, x + (inside ? c * g.channel + in_y * g.in_w + in_x : 0), inside};
  });
}

DEVICE void stage(const Geometry& g, const Element* x, float* input, int y0, int x0, int thread, int threads) {
  if (g.mode == PLANES)
    stage_planes(g, x, input, y0, x0, thread, threads);
  else if (g.mode == RUN)
    stage_all<4>(g, thread, threads, [&](int i) { return Copy{input + i * 4, x + i * 4, true}; });
  else if (g.vector == 4)
    stage_rows<4>(g, x, input, y0, x0, thread, threads);
  else if (g.vector == 2)
    stage_rows<2>(g, x, input, y0, x0, thread, threads);
  else
    stage_rows<1>(g, x, input, y0, x0, thread, threads);
}

// Element of a map that the pixel at `place` of a tile is, or -1 where it is none.
DEVICE int output_at(const Geometry& g, int place, int y0, int x0) {
  int row = g.pitch.divide(place), column = place - row * g.pitch;
  bool inside = row < g.rows && column < g.columns && y0 + row < g.out_h && x0 + column < g.out_w;
  return inside ? (y0 + row) * g.out_w + x0 + column : -1;
}

// Adds the products of pairs `begin` to `end`, (value, offset) twice each, to the sums of one filter.
template <int P, int STEP>
DEVICE void add_pairs(float (&acc)[1][P], const char* mine, const int4* pairs, int begin, int end) {
  int4 pair = pairs[begin];
#pragma unroll 2
  for (int i = begin; i < end; i++) {
    int4 next = pairs[i + 1];
    const char *at0 = mine + pair.y, *at1 = mine + pair.w;
    float in0[P], in1[P];
    UNROLL for (int p = 0; p < P; p++) in0[p] = *(const float*)(at0 + p * 128 * STEP);
    UNROLL for (int p = 0; p < P; p++) in1[p] = *(const float*)(at1 + p * 128 * STEP);
    UNROLL for (int p = 0; p < P; p++) acc[0][p] = fmaf(BITS_AS_FLOAT(pair.x), in0[p], acc[0][p]);
    UNROLL for (int p = 0; p < P; p++) acc[0][p] = fmaf(BITS_AS_FLOAT(pair.z), in1[p], acc[0][p]);
    pair = next;
  }
}

// The same of V filters that share their non-zeros: a pair is two offsets, then V values each.
template <int P, int STEP, int V>
DEVICE void add_vectors(float (&acc)[V][P], const char* mine, const int4* pairs, int begin, int end) {
  constexpr int UNITS = V / 2 + 1;
  const int4* pair = pairs + begin * UNITS;
  int4 offsets = *pair;
  for (int i = begin; i < end; i++, pair += UNITS) {
    const int4 next = pair[UNITS];
    UNROLL for (int j = 0; j < 2; j++) {
      const char* at = mine + (j ? offsets.y : offsets.x);
      float in[P];
      UNROLL for (int p = 0; p < P; p++) in[p] = *(const float*)(at + p * 128 * STEP);
      UNROLL for (int q = 0; q < V / 4; q++) {
        const float4 values = ((const float4*)(pair + 1))[j * (V / 4) + q];
        UNROLL for (int p = 0; p < P; p++) {
          acc[4 * q][p] = fmaf(values.x, in[p], acc[4 * q][p]);
          acc[4 * q + 1][p] = fmaf(values.y, in[p], acc[4 * q + 1][p]);
          acc[4 * q + 2][p] = fmaf(values.z, in[p], acc[4 * q + 2][p]);
          acc[4 * q + 3][p] = fmaf(values.w, in[p], acc[4 * q + 3][p]);
        }
      }
    }
    offsets = next;
  }
}

// What a block reads but residuals: weights and zeros, which need nothing of the kernel before this one, then its
// input.
DEVICE void stage_block(const Geometry& g, const Element* x, const int4* weights, int4* own, float* input, int y0, int x0,
                        int thread, int threads) {
  for (int i = thread; i < g.stride; i += threads) copy<16>(own + i, weights + i, true);
  for (int i = thread; i < g.zero_rows; i += threads)
    for (int j = 0; j < g.lead; j++)
      if (i * g.row_pitch + j < g.input_floats) input[i * g.row_pitch + j] = 0.f;
  wait_for_kernel();
  launch_next();
  stage(g, x, input, y0, x0, thread, threads);
  commit_copies();
}

// Four pixels a thread of the filters that are this block's to add up; what memory holds of them is read ahead.
DEVICE void add_up(const Geometry& g, const float* sums, const int* channels, int shift, int places, int y0, int x0,
                   const Element* bias, const Element* residual, Element* y) {
  const int part = blockIdx.x, threads = blockDim.x, all = (g.filters >> shift) * places / 4;
  int outputs[4], map = 0;
  float added[4];
  auto read_ahead = [&](int i) {
    const int own_filter = g.quads.divide(i), place = i * 4 - own_filter * places;
    const int channel = channels[(own_filter << shift) + part];
    const float own_bias = g.has_bias ? widened(bias[channel]) : 0.f;
    map = channel * g.out_map;
    UNROLL for (int j = 0; j < 4; j++) {
      outputs[j] = output_at(g, place + j, y0, x0);
      added[j] = own_bias + (g.has_residual && outputs[j] >= 0 ? widened(residual[map + outputs[j]]) : 0.f);
    }
  };
  int i = threadIdx.x;
  if (i < all) read_ahead(i);
  cluster_wait();
  while (i < all) {
    float sum[4] = {0.f, 0.f, 0.f, 0.f};
    for (int p = 0; p < g.parts; p++) {
      const float4 next = ((const float4*)sums)[p * all + i];
      sum[0] += next.x, sum[1] += next.y, sum[2] += next.z, sum[3] += next.w;
    }
    UNROLL for (int j = 0; j < 4; j++) {
      const float value = sum[j] + added[j];
      if (outputs[j] >= 0) y[map + outputs[j]] = narrowed(with_relu(g, value));
    }
    i += threads;
    if (i < all) read_ahead(i);
  }
}

// A warp's share of the filters, V at a time, each with P pixels of a lane: their sums go to memory, or to the block of
// the cluster that adds them up.
template <int P, int STEP, int V> DEVICE void add_filters(const Geometry& g, const int* begins, const int* channels,
                                                          const int4* pairs, const char* mine, float* sums, int filter,
                                                          int first, int shift, int places, const int (&outputs)[P],
                                                          const Element* bias, const Element* residual, Element* y) {
  for (int f = filter; f < g.filters / V; f += g.filters_at_once) {
    float acc[V][P], added[V][P];
    // Of one filter, what memory holds of its outputs is read ahead; of several there are no registers for it.
    auto read_ahead = [&](int v) {
      const int channel = channels[f * V + v];
      const float own_bias = g.has_bias ? widened(bias[channel]) : 0.f;
      UNROLL for (int p = 0; p < P; p++) {
        const bool reads = g.has_residual && outputs[p] >= 0;
        added[v][p] = own_bias + (reads ? widened(residual[channel * g.out_map + outputs[p]]) : 0.f);
      }
    };
    UNROLL for (int v = 0; v < V; v++)
      UNROLL for (int p = 0; p < P; p++) acc[v][p] = 0.f;
    if (V == 1 && g.parts == 1) read_ahead(0);
    if constexpr (V == 1)
      add_pairs<P, STEP>(acc, mine, pairs, begins[f], begins[f + 1]);
    else
      add_vectors<P, STEP, V>(acc, mine, pairs, begins[f], begins[f + 1]);
    UNROLL for (int v = 0; v < V; v++) {
      const int each = f * V + v;
      if (g.parts == 1) {
        if (V > 1) read_ahead(v);
        const int map = channels[each] * g.out_map;
        UNROLL for (int p = 0; p < P; p++)
          if (outputs[p] >= 0) y[map + outputs[p]] = narrowed(with_relu(g, acc[v][p] + added[v][p]));
      } else {
        const int slot = blockIdx.x * (g.filters >> shift) + (each >> shift);
        unsigned to = remote_address(sums + slot * places + first, each & (g.parts - 1));
        UNROLL for (int p = 0; p < P; p++) remote_store(to + p * 128, acc[v][p]);
      }
    }
  }
}

// A block's weights: where the pairs of each V filters begin (filters / V + 1), each filter's output channel, then the
// pairs.
template <int P, int STEP, int V>
DEVICE void convolution(const Geometry& g, const Element* __restrict__ x, const int4* __restrict__ weights,
                        const Element* __restrict__ bias, const Element* __restrict__ residual,
                        Element* __restrict__ y) {
  SHARED_MEMORY;
  const int thread = threadIdx.x, threads = blockDim.x, warp = thread >> 5, lane = thread & 31, part = blockIdx.x;
  int over_x = g.tiles_x.divide(blockIdx.z), n = g.tiles_y.divide(over_x);
  const int y0 = (over_x - n * g.tiles_y) * g.rows, x0 = (blockIdx.z - over_x * g.tiles_x) * g.columns;
  const int places = g.pixel_groups * P * 32;
  int4* own = (int4*)shared;
  float *input = shared + g.stride * 4, *sums = input + g.input_floats;
  if (g.parts > 1) cluster_arrive();
  const int group = g.k_tiles.divide(blockIdx.y);
  stage_block(g, x + (size_t)n * g.image + group * g.group_elements + part * g.part_elements,
              weights + (size_t)(blockIdx.y * g.parts + part) * g.stride, own, input, y0, x0, thread, threads);
  const int filter = g.pixel_groups.divide(warp), first = (warp - filter * g.pixel_groups) * P * 32 + lane;
  int outputs[P];
  UNROLL for (int p = 0; p < P; p++) outputs[p] = output_at(g, first + p * 32, y0, x0);
  y += (size_t)n * g.out_image;
  residual += (size_t)n * g.out_image;
  wait_for_copies();
  __syncthreads();
  const int *begins = (const int*)own, *channels = begins + g.filters / V + 1;
  if (g.parts > 1) cluster_wait();
  const int shift = g.parts == 8 ? 3 : g.parts == 4 ? 2 : g.parts == 2 ? 1 : 0;
  add_filters<P, STEP, V>(g, begins, channels, own + g.first_pair, (const char*)(input + first * STEP), sums, filter,
                          first, shift, places, outputs, bias, residual, y);
  if (g.parts == 1) return;
  cluster_arrive();
  add_up(g, sums, channels, shift, places, y0, x0, bias, residual, y);
}

}  // namespace tvm_sparse
