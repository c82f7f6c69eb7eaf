// Depthwise convolutions in half precision, whose channels lie side by side: each has one filter.
//
// A thread has 8 channels, which are 16 bytes, of COLUMNS pixels side by side: of each row of taps it reads the inputs of
// all its pixels once, and adds in float32. Neighbours have the next channels, then the next pixels, so what a warp reads
// is whole lines of memory, and rows that the pixels below read too are in the caches.
//
// Its integers are declared in scheduling/cuda/depthwise/kernels.py.

#include "device/kernel.cuh"
#include "device/pairs.cuh"
#include "device/epilogue.cuh"
#include "device/pipeline.cuh"

namespace tvm_sparse {

constexpr int THREADS = 128, GROUP = 8, PAIRS = GROUP / 2;

// The channels of a group of one pixel, which lie `distance` elements apart unless they are side by side.
DEVICE void read(unsigned (&to)[PAIRS], const Element* from, bool side_by_side, int distance) {
  alignas(16) Element found[GROUP];
  if (side_by_side)
    *(int4*)found = *(const int4*)from;
  else
    UNROLL for (int i = 0; i < GROUP; i++) found[i] = from[(long)i * distance];
  UNROLL for (int i = 0; i < PAIRS; i++) to[i] = ((const unsigned*)found)[i];
}

template <int SIZE, int STRIDE, int COLUMNS>
DEVICE void convolution(const Geometry& g, const Element* x, const int4* weights, const Element* bias, const Element*,
                        Element* y) {
  constexpr int READ = (COLUMNS - 1) * STRIDE + SIZE;
  const int all = blockIdx.x * THREADS + threadIdx.x, place = g.groups.quotient(all), group = all - place * g.groups;
  const int line = g.parts.quotient(place), out_x = (place - line * g.parts) * COLUMNS;
  const int image = g.out_h.quotient(line), out_y = line - image * g.out_h, channel = group * GROUP;
  if (image >= g.images) return;
  float sums[COLUMNS][GROUP];
  UNROLL for (int i = 0; i < GROUP; i++) {
    const float first = g.has_bias ? widened(bias[channel + i]) : 0.f;
    UNROLL for (int j = 0; j < COLUMNS; j++) sums[j][i] = first;
  }
  // Elements between channels, and between pixels.
  const int in_map = g.in_h * g.in_w, in_pixel = g.nhwc ? g.channels : 1;
  const Element* in = x + (long)image * g.channels * in_map + (g.nhwc ? channel : (long)channel * in_map);
  const int in_x = out_x * STRIDE - g.pad_w;
  const unsigned most = as_pair(BITS_AS_FLOAT(g.most), BITS_AS_FLOAT(g.most));
  const int4* of_group = weights + group * SIZE * SIZE;
  wait_for_kernel();
  launch_next();

  UNROLL for (int r = 0; r < SIZE; r++) {
    const int in_y = out_y * STRIDE - g.pad_h + r;
    if ((unsigned)in_y >= (unsigned)g.in_h) continue;
    unsigned inputs[READ][PAIRS];
    UNROLL for (int j = 0; j < READ; j++) {
      if ((unsigned)(in_x + j) < (unsigned)g.in_w) {
        read(inputs[j], in + ((long)in_y * g.in_w + in_x + j) * in_pixel, g.nhwc, in_map);
        if (g.is_clipped)
          UNROLL for (int i = 0; i < PAIRS; i++) inputs[j][i] = smaller(inputs[j][i], most);
      } else {
        UNROLL for (int i = 0; i < PAIRS; i++) inputs[j][i] = 0;
      }
    }
    UNROLL for (int s = 0; s < SIZE; s++) {
      const int4 taps = of_group[r * SIZE + s];
      UNROLL for (int i = 0; i < GROUP; i++) {
        const float tap = part_of(((const unsigned*)&taps)[i / 2], i % 2);
        UNROLL for (int j = 0; j < COLUMNS; j++)
          sums[j][i] += tap * part_of(inputs[j * STRIDE + s][i / 2], i % 2);
      }
    }
  }
  const long out_map = (long)g.out_h * g.out_w, first = (long)image * g.channels * out_map;
  UNROLL for (int j = 0; j < COLUMNS; j++) {
    const long pixel = (long)out_y * g.out_w + out_x + j;
    if (out_x + j >= g.out_w) return;
    alignas(16) Element found[GROUP];
    UNROLL for (int i = 0; i < GROUP; i++) found[i] = narrowed(with_relu(g, sums[j][i]));
    if (g.nhwc)
      *(int4*)(y + first + pixel * g.channels + channel) = *(const int4*)found;
    else
      UNROLL for (int i = 0; i < GROUP; i++) y[first + (channel + i) * out_map + pixel] = found[i];
  }
}

}  // namespace tvm_sparse
