// The warpgroups of plane.cu that write inputs: from memory to where tensor cores read them.
//
// In float32 they note, on the way, chunks in which all that some place has may be out of float16's range. Those who
// multiply ask for such a tile again, as they give its last slot back.

namespace tvm_sparse {

// A place of the line, of the first of a lane's pixels.
struct Place {
  int first, in_y, in_x, from;
  bool is_image;

  DEVICE Place(const Geometry& g, int tile_begin, int first) : first(first) {
    const int at = tile_begin + first, image = g.image_places.quotient(at);
    const int in_image = at - image * g.image_places, row = g.pitch.quotient(in_image);
    in_y = row * g.stride_h - g.pad_h, in_x = (in_image - row * g.pitch) * g.stride_w - g.lead;
    from = image * g.image + in_y * g.in_w + in_x;
    is_image = image < g.batch && first < g.staged;
  }
};

// What 8 planes have there.
template <int V> struct Copy {
  unsigned values[8];
  int first, to;

  DEVICE void read(const Geometry& g, const Place& place, const int4* planes, int group, const Element* x) {
    const int4 four = planes[0], others = planes[1], shift = planes[2];
    const bool inside = place.is_image && (unsigned)(place.in_y + shift.x) < (unsigned)g.in_h &&
                        (unsigned)(place.in_x + shift.y) < (unsigned)g.in_w;
    first = place.first, to = first < g.staged ? group * g.staged + first : -1;
    const unsigned from = place.from + shift.x * g.in_w + shift.y;
    const int channels[8] = {four.x, four.y, four.z, four.w, others.x, others.y, others.z, others.w};
    UNROLL for (int j = 0; j < 8; j++) {
      // Of 32 bits, so that one addition finds each.
      const unsigned at = (from + channels[j]) * (unsigned)sizeof(Element);
      values[j] = V * sizeof(Element) == 4 ? read_word(x, at, inside) : read_half(x, at, inside);
    }
  }
  // The largest of float32.
  DEVICE float largest() const {
    float found = 0.f;
    UNROLL for (int j = 0; j < 8; j++) found = fmaxf(found, fabsf(BITS_AS_FLOAT(values[j])));
    return found;
  }
  // Float32 scaled, in parts that are `part_units` apart.
  DEVICE void write(int4* slot, int part_units, float scale) const {
    const unsigned* v = values;
    if constexpr (PARTS > 1) {
      unsigned high[4], low[4];
      UNROLL for (int j = 0; j < 4; j++) {
        const float one = scale * BITS_AS_FLOAT(v[2 * j]), other = scale * BITS_AS_FLOAT(v[2 * j + 1]);
        const Halves parts(one, other);
        high[j] = parts.high, low[j] = parts.low;
      }
      slot[to] = make_int4(high[0], high[1], high[2], high[3]);
      slot[to + part_units] = make_int4(low[0], low[1], low[2], low[3]);
    } else if constexpr (V == 2) {
      slot[to] = make_int4(lower(v[0], v[1]), lower(v[2], v[3]), lower(v[4], v[5]), lower(v[6], v[7]));
      slot[to + 1] = make_int4(upper(v[0], v[1]), upper(v[2], v[3]), upper(v[4], v[5]), upper(v[6], v[7]));
    } else {
      slot[to] = make_int4(v[0] | v[1] << 16, v[2] | v[3] << 16, v[4] | v[5] << 16, v[6] | v[7] << 16);
    }
  }
  // Of two pairs the first, and the second ones.
  static DEVICE int lower(unsigned one, unsigned other) { return (one & 0xffff) | other << 16; }
  static DEVICE int upper(unsigned one, unsigned other) { return one >> 16 | (other & 0xffff0000u); }
};

// Which of float32's inputs are out of float16's range, in shared memory.
template <int N> struct Ranges {
  // Of a slot the last chunk, counted from 1, that has a place whose inputs may be out of the window of inputs as they
  // are; and which of the block's tiles is asked to be written again, from 1. Of that tile which windows its pixels are
  // in, each pixel's largest input as bits, and its window.
  int* odd;
  int* asked;
  unsigned* windows;
  unsigned* largest;
  unsigned char* window_of;

  static constexpr int UNITS = PARTS > 1 ? MAX_SLOTS / 2 + 1 + N / 4 + CONSUMERS * N / 16 : 0;

  DEVICE explicit Ranges(int4* units)
      : odd((int*)units),
        asked(odd + MAX_SLOTS),
        windows((unsigned*)(asked + MAX_SLOTS)),
        largest(windows + 4),
        window_of((unsigned char*)(largest + N)) {}
  // At a kernel's beginning.
  DEVICE void clear() const {
    if (PARTS > 1 && threadIdx.x < 2 * MAX_SLOTS) odd[threadIdx.x] = 0;
  }
  // Whether an output of which that is the largest input is not computed from inputs as they are.
  static DEVICE bool is_out(float largest) { return largest >= LARGE || (largest > 0.f && largest < SMALL); }
  // The power of two that brings a window's numbers to that of inputs as they are.
  static DEVICE float scale(int window) {
    const int exponent = max(-126, min(126, (WINDOWS - window) * WINDOW));
    return BITS_AS_FLOAT((127 + exponent) << 23);
  }
  static DEVICE int window(unsigned largest) {
    if (!largest) return WINDOWS;
    const int power = (int)(largest >> 23) - 127 - FIRST_POWER;
    return (power + WINDOWS * WINDOW) / WINDOW;
  }
  // A place's largest input in planes that are read so much further counts for all pixels that it is one of.
  DEVICE void tell(const Geometry& g, int first, int4 shift, float found) const {
#pragma unroll 1
    for (int i = 0; i < g.r * g.s; i++) {
      const int row = i / g.s * g.dilation_h, column = i % g.s * g.dilation_w;
      const int rows = g.own_rows ? 0 : row / g.stride_h, columns = g.own_columns ? 0 : column / g.stride_w;
      const int pixel = first - (rows * g.pitch + columns + g.first_column);
      const bool reads = row - rows * g.stride_h == shift.x && column - columns * g.stride_w == shift.y;
      if (reads && (unsigned)pixel < (unsigned)N) atomicMax(largest + pixel, FLOAT_AS_BITS(found));
    }
  }
};

template <int N> struct Block {
  // A warp's outputs of a tile on their way to memory, 16 filters; units of all warps that multiply.
  static constexpr int OUT_PITCH = N + 8, OUT_UNITS = CONSUMERS * FILTERS * OUT_PITCH * sizeof(Element) / 16;

  const Geometry& g;
  Weights weights;
  Ranges<N> ranges;
  int4* ring;
  int worker, slots, slot_units;

  DEVICE int next(int slot) const { return slot + 1 == slots ? 0 : slot + 1; }
};

// Inputs of a tile and a chunk that are to be written to a slot, scaled.
struct Job {
  int tile, chunk, slot;
  float scale;
};

// A warp of those who write has a share of all copies of 32 * V places of 8 planes, all planes of the same places one
// after the other; several copies at a time, whose reads are all on their way before any is waited for. Whether all
// that it has read of a place is out of the window of inputs as they are.
template <int N, int V> DEVICE bool do_job(const Block<N>& block, const Job& job, const Element* x, int warp) {
  constexpr int AT_ONCE = 4, WARPS = PRODUCING / 32;
  const Geometry& g = block.g;
  const Chunk chunk(block.weights, job.chunk);
  int4* slot = block.ring + job.slot * block.slot_units;
  const int lane = threadIdx.x & 31, all = (g.copies + 31) / 32 * chunk.groups, end = all * (warp + 1) / WARPS;
  int number = all * warp / WARPS, row = (unsigned)number / (unsigned)chunk.groups, group = number - row * chunk.groups;
  Place place(g, job.tile * N, (row * 32 + lane) * V);
  bool is_odd = false;
  float largest = 0.f;
  int last = -1;
  for (; number < end; number += AT_ONCE) {
    Copy<V> copies[AT_ONCE];
    UNROLL for (int j = 0; j < AT_ONCE; j++) {
      copies[j].to = -1;
      if (number + j >= end) continue;
      if (group == chunk.groups) group = 0, row++, place = Place(g, job.tile * N, (row * 32 + lane) * V);
      copies[j].read(g, place, chunk.planes + group * GROUP, group, x);
      group++;
    }
    UNROLL for (int j = 0; j < AT_ONCE; j++) {
      if (copies[j].to < 0) continue;
      if constexpr (PARTS > 1) {
        if (copies[j].first != last)
          is_odd = is_odd || Ranges<N>::is_out(largest), largest = 0.f, last = copies[j].first;
        largest = fmaxf(largest, copies[j].largest());
      }
      copies[j].write(slot, g.slot_groups * g.staged, job.scale);
    }
  }
  return is_odd || Ranges<N>::is_out(largest);
}

// Of one of a block's tiles the windows of its pixels, from the largest input of each.
template <int N> DEVICE unsigned find_windows(const Block<N>& block, int own_tile, const Element* x, int warp) {
  const Ranges<N>& ranges = block.ranges;
  const Geometry& g = block.g;
  const int thread = threadIdx.x - 128 * CONSUMERS, consumer = own_tile % CONSUMERS;
  const int tile = block.worker + own_tile * g.workers;
  if (thread == 0) ranges.windows[consumer] = 0;
  if (thread < N) ranges.largest[thread] = 0;
  barrier_sync(WRITTEN, PRODUCING);
#pragma unroll 1
  for (int number = 0; number < block.weights.chunks; number++) {
    const Chunk chunk(block.weights, number);
    const int all = (g.staged + 31) / 32 * chunk.groups;
#pragma unroll 1
    for (int i = warp; i < all; i += PRODUCING / 32) {
      const int row = i / chunk.groups, group = i - row * chunk.groups;
      Copy<1> copy;
      copy.read(g, Place(g, tile * N, row * 32 + (threadIdx.x & 31)), chunk.planes + group * GROUP, group, x);
      if (copy.to >= 0) ranges.tell(g, copy.first, chunk.planes[group * GROUP + 2], copy.largest());
    }
  }
  barrier_sync(WRITTEN, PRODUCING);
  if (thread < N) {
    const int window = ranges.window(ranges.largest[thread]);
    ranges.window_of[consumer * N + thread] = window;
    atomicOr(ranges.windows + consumer, 1u << window);
  }
  barrier_sync(WRITTEN, PRODUCING);
  return same_of_all(ranges.windows[consumer]);
}

// All chunks of all tiles, one after the other. Before a slot is written anew, the tile that was in it again where that
// is asked for, through this slot: for each window of its pixels that is not that of inputs as they are.
template <int N> DEVICE void write_inputs(const Block<N>& block, const Element* x) {
  const Geometry& g = block.g;
  const int warp = same_of_all((threadIdx.x >> 5) - 4 * CONSUMERS), chunks = block.weights.chunks;
  const int all = (g.tiles - block.worker + g.workers - 1) / g.workers * chunks, first = min(all, block.slots);
  int own_tile = 0, chunk = 0, slot = 0;
  for (int number = 0; number < all + first; number++) {
    if (number == all && all < block.slots) slot = 0;
    int asked = -1;
    unsigned left = 0;
    if (number >= first) {
      barrier_sync(EMPTY + slot, HANDING);
      if constexpr (PARTS > 1) asked = same_of_all(block.ranges.asked[slot]) - 1;
      if (asked >= 0) {
        left = find_windows(block, asked, x, warp) & ~(1u << WINDOWS);
        // Not passed: who consumes may still wait for a residual when the first inputs are written, and a barrier takes
        // nobody twice in one round.
        barrier_sync(FULL_AGAIN + asked % CONSUMERS, HANDING);
      }
    }
    int again = 0;
    while (left || number < all) {
      Job job = {block.worker + own_tile * g.workers, chunk, slot, 1.f};
      if (left) job = {block.worker + asked * g.workers, again, slot, Ranges<N>::scale(first_bit(left))};
      const bool is_odd =
          PARTS == 1 && g.vector == 2 ? do_job<N, 2>(block, job, x, warp) : do_job<N, 1>(block, job, x, warp);
      if (PARTS > 1 && is_odd && !left) block.ranges.odd[slot] = number + 1;
      show_tensor_cores();
      if (!left) {
        barrier_arrive(FULL + CONSUMERS * slot + own_tile % CONSUMERS, HANDING);
        break;
      }
      barrier_arrive(FULL_AGAIN + asked % CONSUMERS, HANDING);
      barrier_sync(EMPTY_AGAIN, HANDING);
      if (++again == chunks) again = 0, left &= left - 1;
    }
    slot = block.next(slot);
    if (++chunk == chunks) chunk = 0, own_tile++;
  }
}

}  // namespace tvm_sparse
