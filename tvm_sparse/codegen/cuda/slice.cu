// Convolutions on tensor cores whose filters share their non-zero positions: one kernel for every shape, weight and
// tile of `slice_cuda`.
//
// A position is an input channel and a tap, (c, r, s). Filters that share their positions, 16 * M of them, are the rows
// of a small dense matrix: the weights at those positions, in whatever order. A warp multiplies it with the inputs at
// these positions of 8 * NW pixels, 8 (in half precision 16) positions at a time: a k-step of `mma`. So zeros that the
// filters share are neither copied nor multiplied. Nothing is gathered beforehand: the input lies in shared memory as
// it does in memory, and a k-step names where each of its positions is found, as an offset from a pixel's place.
//
// What a warp reads at once, 8 pixels of 4 positions, has no bank conflicts where the 4 are chosen well, which is done
// as weights are packed (scheduling/cuda/slice/packing.py).
//
// Half precision: where pixels are an even number of elements apart, 4 bytes of a row are two positions of every pixel. A
// chunk may be packed so, in *words*: half as many reads, and nothing to put together.
//
// In float32 each number is the sum of a TF32 number, its high part, and of what is cut off, its low part:
// `high * high` in TF32, the corrections `low * all + high * low` in bfloat16, whose rounding is that much smaller.
// What a lane has of a TF32 product, 8 positions, are two columns each of a bfloat16 product, which takes 16. Where
// numbers may be rounded to TF32, tensor cores cut them off, and there are no corrections.
//
// A block has `filter_warps` * 16 * M filters of `pixel_warps` * NW groups of 8 pixels. Channels that none of its
// filters uses it never reads. Those that are left come chunk by chunk through a ring of `stages` buffers, with the
// weights of their positions. `k_warps` warps divide a chunk's k-steps and add up what they have at the end.
//
// Its integers are declared in scheduling/cuda/slice/kernels.py.

#include "device/kernel.cuh"
#include "device/mma.cuh"
#include "device/epilogue.cuh"
#include "device/pipeline.cuh"
#include "device/split.cuh"

namespace tvm_sparse {

#ifdef TVM_SPARSE_HALF
// Half-precision numbers are multiplied as they are and added up in float32.
constexpr int QUADS = 4;
#else
constexpr int QUADS = 2;
#endif
constexpr int THREADS = 256;
// Where the 4 positions of each read are, for one of the 4 lanes that have a pixel; or two words, and what counts of each.
struct __align__(4 * QUADS) Offsets {
  int at[QUADS];
};

#ifndef TVM_SPARSE_EMULATED
// What the lane has whose number differs by these bits.
template <typename T> DEVICE T of_lane(T value, int bits) { return __shfl_xor_sync(0xffffffffu, value, bits); }
#endif

// The input of a chunk's `count` channels, V elements at a time, behind `lead` zeros that pad a row and the one before.
// Where a channel has fewer copies than there are threads, these take several channels at once.
template <int V> DEVICE void stage_input(const Geometry& g, const Element* x, const int* channels, int count,
                                         Element* input, int images, int in_y0, int in_x0) {
  constexpr int AHEAD = 8;
  const int first = g.slots_at_once > 1 ? g.per_channel.divide(threadIdx.x) : 0;
  if (first >= g.slots_at_once) return;
  for (int i = threadIdx.x - first * g.per_channel; i < g.per_channel; i += blockDim.x) {
    const int image = g.per_image.divide(i), in_image = i - image * g.per_image;
    const int row = g.per_row.divide(in_image), column = (in_image - row * g.per_row) * V;
    const int in_y = in_y0 + row * g.row_step, in_x = in_x0 + column;
    const bool inside = (unsigned)in_y < (unsigned)g.in_h && in_x < g.in_w && image < images;
    const Element* from = x + (inside ? image * g.image + in_y * g.in_w + in_x : 0);
    Element* to = input + image * g.image_pitch + row * g.row_pitch + g.lead + column;
    // Several at a time: a copy waits for the number of its channel.
    for (int slot = first; slot < count; slot += AHEAD * g.slots_at_once) {
      int own[AHEAD];
      UNROLL for (int j = 0; j < AHEAD; j++) own[j] = channels[min(slot + j * g.slots_at_once, count - 1)] * g.channel;
      UNROLL for (int j = 0; j < AHEAD; j++) {
        const int each = slot + j * g.slots_at_once;
        if (each >= count) break;
        if constexpr (V * sizeof(Element) == 2)  // Less than what can be copied asynchronously.
          *(short*)(to + each * g.channel_pitch) = inside ? *(const short*)(from + own[j]) : 0;
        else
          copy<V * sizeof(Element)>(to + each * g.channel_pitch, from + own[j], inside);
      }
    }
  }
}

#if !defined(TVM_SPARSE_HALF) && !defined(TVM_SPARSE_TF32)
// A lane's weights of 16 filters in a k-step, their high parts and as corrections.
struct Filters {
  unsigned high[4], corrections[4];

  DEVICE void read(const uint4* fragment) {
    *(uint4*)high = *fragment;
    UNROLL for (int j = 0; j < 4; j++) {
      corrections[j] = weight_corrections(BITS_AS_FLOAT(high[j]));
      high[j] &= HIGH;
    }
  }
};

// The same of its inputs of a group of 8 pixels.
struct Inputs {
  unsigned high[2], corrections[2];

  DEVICE void read(const char* pixel, const Offsets& offsets) {
    UNROLL for (int q = 0; q < 2; q++) {
      const float value = *(const float*)(pixel + offsets.at[q]);
      high[q] = FLOAT_AS_BITS(value) & HIGH;
      corrections[q] = input_corrections(value);
    }
  }
};
#endif

// One k-step: a fragment of A for each 16 filters, and the inputs at its positions from each group of 8 pixels.
template <int M, int NW, bool WORDS> DEVICE void add_step(float (&sums)[M][NW][4], const uint4* fragments, const char* input,
                                              const int (&pixels)[NW], const Offsets& offsets) {
#ifdef TVM_SPARSE_HALF
  unsigned a[M][4];
  UNROLL for (int m = 0; m < M; m++) *(uint4*)a[m] = fragments[m * 32];
  UNROLL for (int i = 0; i < NW; i++) {
    const char* pixel = input + pixels[i];
    unsigned b[2];
    UNROLL for (int j = 0; j < 2; j++) {
      const int first = offsets.at[2 * j], second = offsets.at[2 * j + 1];
      if constexpr (WORDS)
        b[j] = *(const unsigned*)(pixel + first) & second;
      else
        b[j] = *(const unsigned short*)(pixel + first) | *(const unsigned short*)(pixel + second) << 16;
    }
    UNROLL for (int m = 0; m < M; m++) multiply_add(sums[m][i], a[m], b[0], b[1]);
  }
#elif defined(TVM_SPARSE_TF32)
  unsigned a[M][4];
  UNROLL for (int m = 0; m < M; m++) *(uint4*)a[m] = fragments[m * 32];
  UNROLL for (int i = 0; i < NW; i++) {
    const char* pixel = input + pixels[i];
    const unsigned first = *(const unsigned*)(pixel + offsets.at[0]), second = *(const unsigned*)(pixel + offsets.at[1]);
    UNROLL for (int m = 0; m < M; m++) multiply_add(sums[m][i], a[m], first, second);
  }
#else
  // Where a warp has no more groups of pixels than of filters, keeping the pixels' parts takes fewer registers.
  if constexpr (M > 1 && NW <= M) {
    Inputs inputs[NW];
    UNROLL for (int i = 0; i < NW; i++) inputs[i].read(input + pixels[i], offsets);
    UNROLL for (int m = 0; m < M; m++) {
      Filters filters;
      filters.read(fragments + m * 32);
      UNROLL for (int i = 0; i < NW; i++)
        add_corrections(sums[m][i], filters.corrections, inputs[i].corrections[0], inputs[i].corrections[1]);
      UNROLL for (int i = 0; i < NW; i++) multiply_add(sums[m][i], filters.high, inputs[i].high[0], inputs[i].high[1]);
    }
  } else {
    Filters filters[M];
    UNROLL for (int m = 0; m < M; m++) filters[m].read(fragments + m * 32);
    UNROLL for (int i = 0; i < NW; i++) {
      Inputs inputs;
      inputs.read(input + pixels[i], offsets);
      UNROLL for (int m = 0; m < M; m++)
        add_corrections(sums[m][i], filters[m].corrections, inputs.corrections[0], inputs.corrections[1]);
      UNROLL for (int m = 0; m < M; m++) multiply_add(sums[m][i], filters[m].high, inputs.high[0], inputs.high[1]);
    }
  }
#endif
}

// Neighbouring pixels of a filter.
template <int N> struct __align__(N * sizeof(Element)) Pixels {
  Element at[N];
};

template <int N> DEVICE void add(float* values, const Element* residual) {
  Pixels<N> added;
  if constexpr (sizeof added >= 4)
    read_line<sizeof added>(&added, residual);
  else
    added = *(const Pixels<N>*)residual;
  UNROLL for (int i = 0; i < N; i++) values[i] += widened(added.at[i]);
}

template <int N> DEVICE void store(const Geometry& g, float (&values)[N], Element* y) {
  Pixels<N> stored;
  UNROLL for (int i = 0; i < N; i++) stored.at[i] = narrowed(with_relu(g, values[i]));
  *(Pixels<N>*)y = stored;
}

// Groups of 8 pixels of a tile, one after the other.
struct Place {
  int image, row, group;

  DEVICE Place(const Geometry& g, int number) {
    image = g.image_8.divide(number);
    const int in_image = number - image * g.image_8;
    row = g.row_8.divide(in_image);
    group = in_image - row * g.row_8;
  }
  DEVICE void next(const Geometry& g) {
    if (++group < g.row_8) return;
    group = 0;
    if (++row < g.rows) return;
    row = 0;
    image++;
  }
};

// A block's pixels, and the first group of 8 of them that a warp has.
struct Tile {
  int n0, images, y0, x0, out_w, first_8;

  DEVICE bool is_pixel(const Geometry& g, const Place& where, int number, int column) const {
    return number < g.tiles_8 && where.image < images && y0 + where.row < g.out_h && column < out_w;
  }
  DEVICE int map_at(const Geometry& g, const Place& where, int column) const {
    return where.image * g.out_image + (y0 + where.row) * g.out_w + x0 + column;
  }
};

// Where the maps of a lane's filters begin.
template <int M> struct Maps {
  int at[M][2];

  DEVICE void find(const Geometry& g, const int* filters) {
    UNROLL for (int m = 0; m < M; m++)
      UNROLL for (int j = 0; j < 2; j++) at[m][j] = filters[m * 16 + j * 8] * g.out_map;
  }
};

// A block's ring of chunks. A chunk's weights: where the k-steps of each filter warp begin, and at last where they end;
// how many channels the chunk has, and which; each filter's output channel; then the k-steps: M fragments and the
// offsets.
struct Ring {
  const Geometry& g;
  const int4* weights;
  const Element* x;
  char* ring;
  int stages, stage_bytes;
  int images, in_y0, in_x0;

  DEVICE Element* input(int buffer) const { return (Element*)(ring + buffer * stage_bytes + g.stride * 16); }
  DEVICE void stage_weights(int chunk, int buffer) const {
    int4* to = (int4*)(ring + buffer * stage_bytes);
    const int4* from = weights + (size_t)chunk * g.stride;
    for (int i = threadIdx.x; i < g.stride; i += blockDim.x) copy<16>(to + i, from + i, true);
  }
  DEVICE void stage_chunk(int chunk, int buffer) const {
    const int* channels = (const int*)(weights + (size_t)chunk * g.stride) + g.first_channel;
    const int count = channels[-1];
    Element* to = input(buffer);
    if (g.vector * sizeof(Element) == 16)
      stage_input<16 / sizeof(Element)>(g, x, channels, count, to, images, in_y0, in_x0);
    else if (g.vector * sizeof(Element) == 8)
      stage_input<8 / sizeof(Element)>(g, x, channels, count, to, images, in_y0, in_x0);
    else if (g.vector * sizeof(Element) == 4)
      stage_input<4 / sizeof(Element)>(g, x, channels, count, to, images, in_y0, in_x0);
    else
      stage_input<1>(g, x, channels, count, to, images, in_y0, in_x0);
  }
  // The first chunks; weights and zeros need nothing of the kernel before this one.
  DEVICE void fill() const {
    for (int i = 0; i < stages - 1 || i == 0; i++) stage_weights(i, i);
    for (int i = threadIdx.x; i < stages * g.planes; i += blockDim.x) {
      const int buffer = g.planes.divide(i), plane = i - buffer * g.planes;
      const int in_plane = g.zero_rows.divide(plane), row = plane - in_plane * g.zero_rows;
      const int slot = in_plane / g.images, image = in_plane - slot * g.images;
      Element* to = input(buffer);
      for (int j = 0; j < g.lead; j++)
        to[slot * g.channel_pitch + image * g.image_pitch + row * g.row_pitch + j] = narrowed(0.f);
    }
    wait_for_kernel();
    launch_next();
    for (int i = 0; i < stages - 1 || i == 0; i++) {
      stage_chunk(i, i);
      commit_copies();
    }
  }
  // Until a chunk is there; the one whose place is free then is on its way.
  DEVICE void advance(int chunk, int buffer) const {
    if (stages == 3)
      wait_for_copies<1>();
    else
      wait_for_copies<0>();
    __syncthreads();
    if (stages > 1) {
      const int ahead = chunk + stages - 1;
      if (ahead < g.chunks) {
        const int to = buffer == 0 ? stages - 1 : buffer - 1;
        stage_weights(ahead, to);
        stage_chunk(ahead, to);
      }
      commit_copies();
    }
  }
};

// Sums begin with what is added to them, so that its reads are waited for together with the input's. Where a lane's
// pixels are in a staged channel, in bytes.
template <int M, int NW> DEVICE void begin_sums(const Geometry& g, const Tile& tile, bool adds, const int* filters,
                                                Maps<M>& maps, const Element* bias, const Element* residual,
                                                float (&sums)[M][NW][4], int (&pixels)[NW]) {
  const int lane = threadIdx.x & 31;
  UNROLL for (int m = 0; m < M; m++)
    UNROLL for (int j = 0; j < 2; j++) {
      const float first = g.has_bias && adds ? widened(bias[filters[m * 16 + j * 8]]) : 0.f;
      UNROLL for (int i = 0; i < NW; i++) sums[m][i][2 * j] = sums[m][i][2 * j + 1] = first;
    }
  adds = g.has_residual && adds;
  residual += (size_t)tile.n0 * g.out_image;
  if (adds) maps.find(g, filters);
  Place place(g, tile.first_8);
  UNROLL for (int i = 0; i < NW; i++, place.next(g)) {
    const int read = place.group * 8 + (lane >> 2), written = place.group * 8 + (lane & 3) * 2;
    const int at = place.image * g.image_pitch + place.row * g.pixel_row + read * g.stride_w;
    pixels[i] = tile.first_8 + i < g.tiles_8 ? at * (int)sizeof(Element) : 0;
    if (!adds || !tile.is_pixel(g, place, tile.first_8 + i, written)) continue;
    const Element* added = residual + tile.map_at(g, place, written);
    UNROLL for (int m = 0; m < M; m++)
      UNROLL for (int j = 0; j < 2; j++) {
        if (g.aligned > 1)
          add<2>(&sums[m][i][2 * j], added + maps.at[m][j]);
        else
          UNROLL for (int k = 0; k < 2; k++)
            if (written + k < tile.out_w) add<1>(&sums[m][i][2 * j + k], added + maps.at[m][j] + k);
      }
  }
}

// A warp's products of a chunk that lies at `own`.
template <int M, int NW, bool WORDS> DEVICE void add_steps(const Geometry& g, const char* own, int filter_warp,
                                                           int k_warp, const int (&pixels)[NW],
                                                           float (&sums)[M][NW][4]) {
  constexpr int STEP = (M * 32 + QUADS) * 16;
  const int lane = threadIdx.x & 31;
  const char* input = own + g.stride * 16;
  const int begin = ((const int*)own)[filter_warp] + k_warp, end = ((const int*)own)[filter_warp + 1];
  const char* step = own + g.first_step * 16 + begin * STEP;
  if (begin < end) {
    Offsets offsets = ((const Offsets*)(step + M * 512))[lane & 3];
    for (int i = begin; i < end; i += g.k_warps) {
      const uint4* fragments = (const uint4*)step + lane;
      step += g.k_warps * STEP;
      const Offsets next = i + g.k_warps < end ? ((const Offsets*)(step + M * 512))[lane & 3] : offsets;
      add_step<M, NW, WORDS>(sums, fragments, input, pixels, offsets);
      offsets = next;
    }
  }
}

template <int M, int NW> DEVICE void add_chunk(const Geometry& g, const char* own, int filter_warp, int k_warp,
                                               const int (&pixels)[NW], float (&sums)[M][NW][4]) {
#ifdef TVM_SPARSE_HALF
  if (((const int*)own)[g.filter_warps + 1]) return add_steps<M, NW, true>(g, own, filter_warp, k_warp, pixels, sums);
#endif
  add_steps<M, NW, false>(g, own, filter_warp, k_warp, pixels, sums);
}

// What the other warps have that divide positions, by way of the ring, which nobody reads any more; whether this one
// has the sums then.
template <int M, int NW>
DEVICE bool add_k_warps(const Geometry& g, char* ring, int warp, int k_warp, float (&sums)[M][NW][4]) {
  const int others = g.filter_warps * g.pixel_warps, mine = warp - k_warp * others, lane = threadIdx.x & 31;
  __syncthreads();
  float4* parts = (float4*)ring;
  if (k_warp > 0)
    UNROLL for (int m = 0; m < M; m++)
      UNROLL for (int i = 0; i < NW; i++)
        parts[(((k_warp - 1) * others + mine) * M * NW + m * NW + i) * 32 + lane] =
            make_float4(sums[m][i][0], sums[m][i][1], sums[m][i][2], sums[m][i][3]);
  __syncthreads();
  if (k_warp > 0) return false;
  for (int k = 0; k < g.k_warps - 1; k++)
    UNROLL for (int m = 0; m < M; m++)
      UNROLL for (int i = 0; i < NW; i++) {
        const float4 part = parts[((k * others + mine) * M * NW + m * NW + i) * 32 + lane];
        sums[m][i][0] += part.x, sums[m][i][1] += part.y, sums[m][i][2] += part.z, sums[m][i][3] += part.w;
      }
  return true;
}

// Two groups of 8 pixels at once, where four pixels are aligned: a lane takes two pixels of one from its neighbour,
// which takes two of the other, so that 64 bytes of a filter are written together instead of 32.
template <int BEGIN, int M, int NW> DEVICE void write_pairs(const Geometry& g, const Tile& tile, const Maps<M>& maps,
                                                            Place& place, float (&sums)[M][NW][4], Element* y) {
  const int lane = threadIdx.x & 31;
  const bool odd = lane & 1;
  UNROLL for (int i = BEGIN; i < NW / 2 * 2; i += 2) {
    Place other = place;
    other.next(g);
    const Place own = odd ? other : place;
    place = other;
    place.next(g);
    const int column = own.group * 8 + (lane & 2) * 2, at = tile.map_at(g, own, column);
    const bool inside = tile.is_pixel(g, own, tile.first_8 + i + odd, column);
    UNROLL for (int m = 0; m < M; m++)
      UNROLL for (int j = 0; j < 2; j++) {
        const float *one = &sums[m][i][2 * j], *two = &sums[m][i + 1][2 * j];
        const float third = of_lane(odd ? one[0] : two[0], 1), fourth = of_lane(odd ? one[1] : two[1], 1);
        float four[4] = {odd ? third : one[0], odd ? fourth : one[1], odd ? two[0] : third, odd ? two[1] : fourth};
        if (inside) store<4>(g, four, y + at + maps.at[m][j]);
      }
  }
}

// Each lane's two pixels of a group of 8.
template <int BEGIN, int M, int NW> DEVICE void write_alone(const Geometry& g, const Tile& tile, const Maps<M>& maps,
                                                            Place& place, float (&sums)[M][NW][4], Element* y) {
  UNROLL for (int i = BEGIN; i < NW; i++, place.next(g)) {
    const int column = place.group * 8 + (threadIdx.x & 3) * 2, at = tile.map_at(g, place, column);
    if (!tile.is_pixel(g, place, tile.first_8 + i, column)) continue;
    UNROLL for (int m = 0; m < M; m++)
      UNROLL for (int j = 0; j < 2; j++) {
        float (&two)[2] = *(float (*)[2]) & sums[m][i][2 * j];
        if (g.aligned > 1)
          store<2>(g, two, y + at + maps.at[m][j]);
        else
          UNROLL for (int k = 0; k < 2; k++) {
            float one[1] = {two[k]};
            if (column + k < tile.out_w) store<1>(g, one, y + at + maps.at[m][j] + k);
          }
      }
  }
}

#ifdef TVM_SPARSE_HALF
// Two lanes, whose numbers differ by a bit, give each other what the other one collects.
DEVICE void exchange(unsigned& of_lower, unsigned& of_upper, int bit) {
  const bool upper = threadIdx.x & bit;
  const unsigned found = of_lane(upper ? of_lower : of_upper, bit);
  (upper ? of_lower : of_upper) = found;
}

// Four groups of 8 pixels at once, where eight pixels are aligned: each of the four lanes that have a filter collects a
// group, so that 64 bytes of a filter are written together.
template <int M, int NW> DEVICE void write_fours(const Geometry& g, const Tile& tile, const Maps<M>& maps, Place& place,
                                                 const float (&sums)[M][NW][4], Element* y) {
  const int collected = threadIdx.x & 3;
  UNROLL for (int i = 0; i + 4 <= NW; i += 4) {
    Place own = place;
    UNROLL for (int k = 0; k < 4; k++, place.next(g))
      if (k == collected) own = place;
    const int column = own.group * 8, at = tile.map_at(g, own, column);
    const bool inside = tile.is_pixel(g, own, tile.first_8 + i + collected, column);
    UNROLL for (int m = 0; m < M; m++)
      UNROLL for (int j = 0; j < 2; j++) {
        unsigned words[4];
        UNROLL for (int k = 0; k < 4; k++) {
          float two[2] = {sums[m][i + k][2 * j], sums[m][i + k][2 * j + 1]};
          store<2>(g, two, (Element*)&words[k]);
        }
        exchange(words[0], words[1], 1), exchange(words[2], words[3], 1);
        exchange(words[0], words[2], 2), exchange(words[1], words[3], 2);
        if (inside) *(uint4*)(y + at + maps.at[m][j]) = make_uint4(words[0], words[1], words[2], words[3]);
      }
  }
}
#endif

template <int M, int NW>
DEVICE void write_sums(const Geometry& g, const Tile& tile, const Maps<M>& maps, float (&sums)[M][NW][4], Element* y) {
  y += (size_t)tile.n0 * g.out_image;
  Place place(g, tile.first_8);
#ifdef TVM_SPARSE_HALF
  if (g.aligned == 8) {
    write_fours(g, tile, maps, place, sums, y);
    write_pairs<NW / 4 * 4>(g, tile, maps, place, sums, y);
    return write_alone<NW / 2 * 2>(g, tile, maps, place, sums, y);
  }
#endif
  if (g.aligned < 4) return write_alone<0>(g, tile, maps, place, sums, y);
  write_pairs<0>(g, tile, maps, place, sums, y);
  write_alone<NW / 2 * 2>(g, tile, maps, place, sums, y);
}

template <int M, int NW> DEVICE void convolution(const Geometry& g, const Element* __restrict__ x,
                                                 const int4* __restrict__ weights, const Element* __restrict__ bias,
                                                 const Element* __restrict__ residual, Element* __restrict__ y) {
  SHARED_MEMORY;
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const int rest = g.pixel_warps.divide(warp), pixel_warp = warp - rest * g.pixel_warps;
  const int k_warp = g.filter_warps.divide(rest), filter_warp = rest - k_warp * g.filter_warps;
  const int number = g.k_tiles.divide(blockIdx.x), k_tile = blockIdx.x - number * g.k_tiles;
  const int over_x = g.tiles_x.divide(number), over_y = g.tiles_y.divide(over_x);
  const int x0 = (number - over_x * g.tiles_x) * g.columns, y0 = (over_x - over_y * g.tiles_y) * g.rows;
  const int n0 = over_y * g.images, images = min(g.images, g.batch - n0);
  const int4* own_weights = weights + (size_t)k_tile * g.chunks * g.stride;
  const int stages = min(g.stages, g.chunks), stage_bytes = g.stride * 16 + g.input_elements * (int)sizeof(Element);
  const int group = g.group_tiles.divide(k_tile);
  x += (size_t)n0 * g.image + group * g.group_elements;
  const Ring ring = {g, own_weights, x, (char*)shared, stages, stage_bytes, images, y0 * g.stride_h - g.pad_h, x0};
  ring.fill();
  const Tile tile = {n0, images, y0, x0, min(g.columns, g.out_w - x0), pixel_warp * NW};
  const int* filters = (const int*)own_weights + g.filters_at + filter_warp * 16 * M + (lane >> 2);
  Maps<M> maps;
  float sums[M][NW][4];
  int pixels[NW];
  begin_sums(g, tile, k_warp == 0, filters, maps, bias, residual, sums, pixels);

  int buffer = 0;
  for (int chunk = 0; chunk < g.chunks; chunk++) {
    ring.advance(chunk, buffer);
    add_chunk(g, ring.ring + buffer * stage_bytes, filter_warp, k_warp, pixels, sums);
    if (stages == 1 && chunk + 1 < g.chunks) {
      __syncthreads();
      ring.stage_weights(chunk + 1, 0);
      ring.stage_chunk(chunk + 1, 0);
      commit_copies();
    }
    buffer = buffer + 1 == stages ? 0 : buffer + 1;
  }
  if (g.k_warps > 1 && !add_k_warps(g, ring.ring, warp, k_warp, sums)) return;
  maps.find(g, filters);
  write_sums(g, tile, maps, sums, y);
}

}  // namespace tvm_sparse
