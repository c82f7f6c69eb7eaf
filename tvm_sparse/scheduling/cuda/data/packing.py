"""The non-zeros of a weight as the blocks of a data kernel read them."""

import numpy as np

from tvm_sparse.scheduling.cuda.data.tiling import Tiling


def packed(weight: np.ndarray, tiling: Tiling) -> np.ndarray:
    """A weight (K, C / groups, R, S) float32 as int32 (blocks, stride, 4), one row of 16-byte units a thread block.

    A row holds where the pairs of each filter begin, or of each `shared` filters, and at last where they end, which
    output channel each filter is, (filters,), and from unit `Tiling.first_pair` on the pairs: two (value, byte offset)
    each, or of several filters two byte offsets, a unit, and for each the filters' values. Behind an odd number of
    non-zeros there is a zero. Blocks are in order of filters, then of parts. Filters are dealt out so that blocks, and
    warps of a block, have about as many non-zeros each: a kernel takes as long as its slowest block.
    """
    spec, parts, shared = tiling.spec, tiling.parts, tiling.shared
    # Filters that a warp takes at a time are dealt together, as a row: of the positions that any of them uses.
    rows, taken = tiling.filters // shared, weight.reshape(-1, shared, *weight.shape[1:])
    used: np.ndarray = np.any(taken, axis=1)
    heads = dealt(np.count_nonzero(used.reshape(len(used), -1), axis=1), spec.groups, rows)
    place = np.empty(len(used), np.int64)
    place[heads] = np.arange(len(used))
    k, c, r, s = np.nonzero(used)
    # Each row of each block: block, part, place in the block.
    row = (place[k] // rows * parts + c // tiling.part_channels) * rows + place[k] % rows
    taps = np.array([[tiling.offset(r, s) for s in range(spec.s)] for r in range(spec.r)], np.int64)
    offsets = 4 * (c % tiling.part_channels * tiling.channel_pitch + taps[r, s])
    values = taken[k, :, c, r, s].astype(np.float32).view(np.int32)
    order = np.argsort(row, kind="stable")
    row, values, offsets = row[order], values[order], offsets[order]
    blocks = len(used) // rows * parts
    counts = np.bincount(row, minlength=blocks * rows)
    pairs = -(-counts.reshape(blocks, rows) // 2)
    begins = np.concatenate([np.zeros((blocks, 1), np.int64), np.cumsum(pairs, axis=1)], axis=1)
    # One pair more than the longest: the kernel reads one ahead.
    stride = tiling.first_pair + tiling.pair_units * (int(begins[:, -1].max()) + 1)
    out = np.zeros((blocks, stride * 4), np.int32)
    out[:, : rows + 1] = begins
    channels = (heads[:, None] * shared + np.arange(shared)).reshape(-1, tiling.filters)
    out[:, rows + 1 : rows + 1 + tiling.filters] = np.repeat(channels, parts, axis=0)
    within = np.arange(row.size) - np.repeat(np.cumsum(counts) - counts, counts)
    block, pair = row // rows, begins[row // rows, row % rows] + within // 2
    at = 4 * (tiling.first_pair + tiling.pair_units * pair)
    if shared == 1:
        out[block, at + 2 * (within % 2)] = values[:, 0]
        out[block, at + 2 * (within % 2) + 1] = offsets
    else:
        out[block, at + within % 2] = offsets
        out[block[:, None], (at + 4 + within % 2 * shared)[:, None] + np.arange(shared)] = values
        # A zero's input is the one before: no other that might be infinite.
        last = np.cumsum(counts)[counts % 2 == 1] - 1
        out[block[last], at[last] + 1] = offsets[last]
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
