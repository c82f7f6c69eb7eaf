// Convolutions of images, of at most four channels, on tensor cores in half precision, and the max pool behind them.
//
// A block takes one tile of outputs after the other. It writes the tile's input to shared memory, four channels of a
// pixel side by side, the last ones zeros. The columns of B are 8 pixels, its rows, 16 a step, four taps: a thread reads
// the four channels of its pixel's tap at once, which are the two registers that it multiplies. So any strides and
// dilations are offsets, of which each thread has one a step. A, the weights, stays in registers: a warp multiplies MT
// times 16 filters, and a block's warps have other filters or other pixels.
//
// Sums lie in shared memory as what they are rounded to. From there outputs go out: a pool's largest ones of each
// window, or all, which are windows of one, in NCHW or NHWC.
//
// Its integers are declared in scheduling/cuda/first/kernels.py.

#include "device/kernel.cuh"
#include "device/mma.cuh"
#include "device/pipeline.cuh"

namespace tvm_sparse {

// Pixels that a warp multiplies at a time, in groups of 8.
constexpr int THREADS = 128, WARPS = 4, CHANNELS = 4, GROUP = 8, GROUPS = 2;

#ifndef TVM_SPARSE_EMULATED
#ifdef TVM_SPARSE_BFLOAT16
typedef __nv_bfloat162 Pair;
#else
typedef __half2 Pair;
#endif
// The larger and the smaller ones of two numbers each; NaN where either is, as in torch.
DEVICE unsigned largest(unsigned one, unsigned other) {
  const Pair found = __hmax2_nan(*(const Pair*)&one, *(const Pair*)&other);
  return *(const unsigned*)&found;
}
DEVICE unsigned smallest(unsigned one, unsigned other) {
  const Pair found = __hmin2_nan(*(const Pair*)&one, *(const Pair*)&other);
  return *(const unsigned*)&found;
}
// 8 bytes of shared memory.
DEVICE uint2 read_pair(unsigned at) {
  uint2 found;
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(found.x), "=r"(found.y) : "r"(at));
  return found;
}
#endif

DEVICE unsigned pair_of(float first, float second) {
  alignas(4) const Element both[2] = {narrowed(first), narrowed(second)};
  return *(const unsigned*)both;
}

// Where a tile is: its image, its first output, and the first output of the convolution that it reads.
struct Place {
  int image, y, x, conv_y, conv_x;

  DEVICE Place(const Geometry& g, int tile) {
    const int row = g.tiles_x.divide(tile);
    image = g.tiles_y.divide(row);
    y = (row - image * g.tiles_y) * g.rows, x = (tile - row * g.tiles_x) * g.columns;
    conv_y = y * g.pool_stride - g.pool_pad, conv_x = x * g.pool_stride - g.pool_pad;
  }
};

// The input of a tile whose first pixel it has at (y0, x0), which may lie in the padding: a warp has some rows.
DEVICE void stage(const Geometry& g, const Element* x, Element* input, int y0, int x0) {
  constexpr int AT_ONCE = 4;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int column = lane; column < g.in_columns; column += 32)
    for (int first = warp; first < g.in_rows; first += AT_ONCE * WARPS) {
      const bool is_column = (unsigned)(x0 + column) < (unsigned)g.in_w;
      alignas(8) Element read[AT_ONCE][CHANNELS];
      UNROLL for (int j = 0; j < AT_ONCE; j++) {
        const int in_y = y0 + first + j * WARPS;
        const bool inside = is_column && (unsigned)in_y < (unsigned)g.in_h;
        const Element* from = x + in_y * g.in_w + x0 + column;
        UNROLL for (int c = 0; c < CHANNELS; c++)
          read[j][c] = inside && c < g.channels ? from[c * g.in_map] : narrowed(0.f);
      }
      UNROLL for (int j = 0; j < AT_ONCE; j++) {
        const int row = first + j * WARPS;
        if (row < g.in_rows) *(uint2*)(input + (row * g.in_columns + column) * CHANNELS) = *(const uint2*)read[j];
      }
    }
}

// Sums of pixels beyond the map, as a pool sees none of them.
DEVICE void leave_out(const Geometry& g, Element* sums, const Place& at) {
  const unsigned none = pair_of(-INFINITY, -INFINITY);
  for (int pixel = threadIdx.x; pixel < g.pixels; pixel += THREADS) {
    const int row = g.conv_columns.divide(pixel), column = pixel - row * g.conv_columns;
    if ((unsigned)(at.conv_y + row) >= (unsigned)g.conv_h || (unsigned)(at.conv_x + column) >= (unsigned)g.conv_w)
      for (int i = 0; i < g.groups; i++) *(uint4*)(sums + pixel * g.pitch + i * GROUP) = {none, none, none, none};
  }
  __syncthreads();
}

// The outputs of a tile, 8 filters of one at a time.
DEVICE void write(const Geometry& g, const Element* sums, Element* y, const Place& at, int k0) {
  const int count = g.out_pixels * g.groups;
  for (int i = threadIdx.x; i < count; i += THREADS) {
    // Neighbours write what lies side by side.
    const int one = g.nhwc ? g.groups.divide(i) : g.out_pixels.divide(i);
    const int other = i - one * (g.nhwc ? g.groups : g.out_pixels);
    const int pixel = g.nhwc ? one : other, group = g.nhwc ? other : one;
    const int row = g.columns.divide(pixel), column = pixel - row * g.columns;
    const int k = k0 + group * GROUP, out_y = at.y + row, out_x = at.x + column;
    if (out_y >= g.out_h || out_x >= g.out_w || k >= g.filters) continue;
    const Element* from = sums + (row * g.conv_columns + column) * g.pool_stride * g.pitch + group * GROUP;
    uint4 found = *(const uint4*)from;
    for (int y = 0; y < g.window; y++, from += g.conv_columns * g.pitch)
      for (int x = 0; x < g.window; x++) {
        const uint4 other = *(const uint4*)(from + x * g.pitch);
        found = {largest(found.x, other.x), largest(found.y, other.y), largest(found.z, other.z),
                 largest(found.w, other.w)};
      }
    const int pixels = g.out_h * g.out_w, out = out_y * g.out_w + out_x;
    if (g.nhwc) {
      *(uint4*)(y + ((long)at.image * pixels + out) * g.filters + k) = found;
    } else {
      const Element* each = (const Element*)&found;
      UNROLL for (int j = 0; j < GROUP; j++) y[((long)at.image * g.filters + k + j) * pixels + out] = each[j];
    }
  }
}

template <int STEPS, int MT>
DEVICE void convolution(const Geometry& g, const Element* x, const int4* weights, const Element* bias, const Element*,
                        Element* y) {
  SHARED_MEMORY;
  // Whole groups of 16 bytes.
  Element *input = (Element*)shared, *sums_of_tile = input + (g.staged + g.staged % 2) * CHANNELS;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, eighth = lane / 4, quarter = lane % 4;
  const int pixel_warp = g.filter_warps.divide(warp), filter_warp = warp - pixel_warp * g.filter_warps;
  const int unit = blockIdx.y * g.filter_warps + filter_warp, k0 = blockIdx.y * g.groups * GROUP;
  // Of 16 filters a thread has two side by side.
  const int filter = filter_warp * MT * 16 + eighth * 2;

  unsigned a[STEPS][MT][4];
  UNROLL for (int i = 0; i < STEPS; i++)
    UNROLL for (int m = 0; m < MT; m++) *(int4*)a[i][m] = weights[((unit * STEPS + i) * MT + m) * 32 + lane];
  float biases[MT][2];
  UNROLL for (int m = 0; m < MT; m++)
    UNROLL for (int j = 0; j < 2; j++) {
      const int k = k0 + filter + m * 16 + j;
      biases[m][j] = g.has_bias && k < g.filters ? widened(bias[k]) : 0.f;
    }
  // In bytes.
  unsigned taps[STEPS];
  UNROLL for (int i = 0; i < STEPS; i++) {
    const int tap = i * 4 + quarter, r = g.taps_w.divide(tap), s = tap - r * g.taps_w;
    taps[i] = tap < g.taps ? (r * g.dilation_h * g.in_columns + s * g.dilation_w) * 8 : 0;
  }
  const bool has_last = STEPS * 4 - 4 + quarter < g.taps;
  const unsigned least = g.relu ? 0 : pair_of(-INFINITY, -INFINITY);
  const float relu_max = g.relu ? BITS_AS_FLOAT(g.relu_max) : INFINITY;
  const unsigned most = pair_of(relu_max, relu_max), read_from = shared_address(input);
  wait_for_kernel();
  launch_next();

  for (int tile = blockIdx.x; tile < g.tiles; tile += g.blocks) {
    const Place at(g, tile);
    const Element* image = x + (long)at.image * g.channels * g.in_map;
    stage(g, image, input, at.conv_y * g.stride_h - g.pad_h, at.conv_x * g.stride_w - g.pad_w);
    __syncthreads();
    for (int first = pixel_warp * GROUPS * 8; first < g.pixels; first += g.pixel_warps * GROUPS * 8) {
      float sums[GROUPS][MT][4];
      unsigned from[GROUPS];
      UNROLL for (int n = 0; n < GROUPS; n++) {
        const int pixel = min(first + n * 8 + eighth, g.pixels - 1);
        const int row = g.conv_columns.divide(pixel), column = pixel - row * g.conv_columns;
        from[n] = read_from + (row * g.stride_h * g.in_columns + column * g.stride_w) * 8;
        UNROLL for (int m = 0; m < MT; m++)
          UNROLL for (int j = 0; j < 4; j++) sums[n][m][j] = biases[m][j / 2];
      }
      UNROLL for (int i = 0; i < STEPS; i++)
        UNROLL for (int n = 0; n < GROUPS; n++) {
          uint2 b = read_pair(from[n] + taps[i]);
          // Beyond the last tap there is nothing to multiply, not even by zero: what is read may be infinite.
          if (i == STEPS - 1 && !has_last) b = {0, 0};
          UNROLL for (int m = 0; m < MT; m++) multiply_add(sums[n][m], a[i][m], b.x, b.y);
        }
      UNROLL for (int n = 0; n < GROUPS; n++)
        UNROLL for (int j = 0; j < 2; j++) {
          // There is room for whole groups.
          Element* to = sums_of_tile + (first + n * 8 + quarter * 2 + j) * g.pitch + filter;
          UNROLL for (int m = 0; m < MT; m++)
            *(unsigned*)(to + m * 16) = smallest(largest(pair_of(sums[n][m][j], sums[n][m][2 + j]), least), most);
        }
    }
    __syncthreads();
    const bool is_within = at.conv_y >= 0 && at.conv_x >= 0 && at.conv_y + g.conv_rows <= g.conv_h &&
                           at.conv_x + g.conv_columns <= g.conv_w;
    if (g.window > 1 && !is_within) leave_out(g, sums_of_tile, at);
    write(g, sums_of_tile, y, at, k0);
    __syncthreads();
  }
}

}  // namespace tvm_sparse
