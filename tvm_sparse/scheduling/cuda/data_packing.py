"""The non-zeros of a weight as the blocks of a data kernel read them."""

import numpy as np

from tvm_sparse.scheduling.cuda.data_tiling import Tiling


def packed(weight: np.ndarray, tiling: Tiling) -> np.ndarray:
    """A weight (K, C / groups, R, S) float32 as int32 (blocks, stride, 4), one row of 16-byte units a thread block.

    A row holds where each filter's pairs begin, and at last where they end, (filters + 1,), which output channel each
    is, (filters,), and from unit `Tiling.first_pair` on the pairs, two (value, byte offset) each; a filter with an odd
    number of non-zeros ends with a zero. Blocks are in order of filters, then of parts. Filters are dealt out so that
    blocks, and warps of a block, have about as many non-zeros each: a kernel takes as long as its slowest block.
    """
    spec, filters, parts = tiling.spec, tiling.filters, tiling.parts
    channels = dealt(np.count_nonzero(weight.reshape(spec.k, -1), axis=1), spec.groups, filters)
    place = np.empty(spec.k, np.int64)
    place[channels] = np.arange(spec.k)
    k, c, r, s = np.nonzero(weight)
    values = weight[k, c, r, s]
    # One row for each filter of each block: block, part, place in the block.
    row = (place[k] // filters * parts + c // tiling.part_channels) * filters + place[k] % filters
    taps = np.array([[tiling.offset(r, s) for s in range(spec.s)] for r in range(spec.r)], np.int64)
    offsets = 4 * (c % tiling.part_channels * tiling.channel_pitch + taps[r, s])
    order = np.argsort(row, kind="stable")
    row, values, offsets = row[order], values[order], offsets[order]
    blocks = spec.k // filters * parts
    counts = np.bincount(row, minlength=blocks * filters)
    pairs = -(-counts.reshape(blocks, filters) // 2)
    begins = np.concatenate([np.zeros((blocks, 1), np.int64), np.cumsum(pairs, axis=1)], axis=1)
    # One unit more than the longest: the kernel reads a pair ahead.
    stride = tiling.first_pair + int(begins[:, -1].max()) + 1
    out = np.zeros((blocks, stride * 4), np.int32)
    out[:, : filters + 1] = begins
    out[:, filters + 1 : 2 * filters + 1] = np.repeat(channels.reshape(-1, filters), parts, axis=0)
    within = np.arange(row.size) - np.repeat(np.cumsum(counts) - counts, counts)
    at = 4 * tiling.first_pair + 4 * begins[row // filters, row % filters] + 2 * within
    out[row // filters, at] = values.astype(np.float32).view(np.int32)
    out[row // filters, at + 1] = offsets
    return out.reshape(blocks, stride, 4)


def dealt(counts: np.ndarray, groups: int, filters: int) -> np.ndarray:
    """Output channels (K,), those of each block of `filters` side by side, so that sums of `counts` are about equal.

    Within a group the largest are dealt to its blocks in turns, there and back.
    """
    per_group = counts.size // groups
    tiles = per_group // filters
    places = np.arange(per_group).reshape(filters, tiles)
    places[1::2] = places[1::2, ::-1]
    # Column t holds the ranks that block t is dealt, largest first.
    ranks = places.T.reshape(-1)
    order = np.argsort(-counts.reshape(groups, per_group), axis=1, kind="stable")
    return (order[:, ranks] + np.arange(groups)[:, None] * per_group).reshape(-1)
