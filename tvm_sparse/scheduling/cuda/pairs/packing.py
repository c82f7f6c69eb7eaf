"""Weights as sparse tensor cores read them: positions in pairs of which no filter of a tile uses both."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from tvm_sparse.scheduling.cuda.pairs.tiling import SLAB, PairTiling

# Partners are sought among so many positions at a time, so that those of a channel stay near each other: what its taps
# read is in the cache.
WINDOW = 256
# What says which of two columns a row has: the first, the second (PTX ISA, "Sparse matrix storage", .tf32).
FIRST, SECOND = 0x4, 0xE


def packed(weight: np.ndarray, tiling: PairTiling) -> np.ndarray:
    """A weight (K, C / groups, R, S) float32 as int32 (filter tiles * slabs, units, 4).

    A row holds what codegen/cuda/sparse_pairs.cu calls a slab's weights. Tiles have as many rows each; the last unit of
    each says how many count. Zeros fill up a group's last filters.
    """
    groups = weight.reshape(tiling.spec.groups, tiling.group_filters, -1)
    filled = np.pad(groups, ((0, 0), (0, tiling.filled), (0, 0)))
    tiles = [_Tile.of(each) for each in filled.reshape(tiling.k_tiles, tiling.filters, -1)]
    most = max(each.slabs for each in tiles)
    out = np.zeros((len(tiles), most, tiling.units, 4), np.int32)
    for rows, tile in zip(out, tiles, strict=True):
        rows[: tile.slabs, : tiling.choices_at] = tile.fragments.reshape(tile.slabs, -1, 4)
        rows[: tile.slabs, tiling.choices_at : tiling.positions_at] = tile.choices.reshape(tile.slabs, -1, 4)
        rows[: tile.slabs, tiling.positions_at : -1] = _places(tile.positions, tiling).reshape(tile.slabs, -1, 4)
        rows[:, -1, 0] = tile.slabs
    return out.reshape(-1, tiling.units, 4)


class _Tile(NamedTuple):
    """A block's filters: int32 fragments (slabs, filters, 16), choices (slabs, filters * 2), positions (slabs, 32)."""

    fragments: np.ndarray
    choices: np.ndarray
    positions: np.ndarray

    @property
    def slabs(self) -> int:
        return len(self.positions)

    @classmethod
    def of(cls, weight: np.ndarray) -> "_Tile":
        """Of a tile's weights (filters, positions)."""
        live = np.flatnonzero(weight.any(axis=0))
        found = live[pairs(weight[:, live] != 0)] if live.size else np.zeros((1, 2), np.int64)
        slabs = -(-len(found) // (SLAB // 2))
        # What fills up has no weights; its input is that of a pair that is read anyway.
        every = np.concatenate([found, np.repeat(found[-1:], slabs * (SLAB // 2) - len(found), axis=0)])
        columns = weight[:, every]
        columns[:, len(found) :] = 0
        # A position without a partner is its own.
        columns[:, every[:, 0] == every[:, 1], 1] = 0
        is_second = columns[:, :, 1] != 0
        chosen = np.where(is_second, columns[:, :, 1], columns[:, :, 0]).astype(np.float32)
        split = (-1, 4, 2, 8, slabs, 2)
        return cls(
            _fragments(chosen.reshape(*split, 2, 4)), _choices(is_second.reshape(*split, 8)), every.reshape(slabs, SLAB)
        )


def _fragments(chosen: np.ndarray) -> np.ndarray:
    """Weights (64 filters, warp, row / 8, row, slab, k-step, column / 4, column) as registers of A.

    PTX ISA, "Register fragments for wgmma.m64nNk8": register j of lane l has row ``l / 4 + 8 * (j % 2)``, and column
    ``l % 4 + 4 * (j / 2)`` of those that are stored.
    """
    # (slab, 64 filters, k-step, warp, l / 4, l % 4, j / 2, j % 2)
    return np.ascontiguousarray(chosen.transpose(4, 0, 5, 1, 3, 7, 6, 2)).view(np.int32)


def _choices(is_second: np.ndarray) -> np.ndarray:
    """Which of two columns each weight is of, four bits each, as lanes say it: (slab, 64 filters, warp, 32) int32.

    Of the four lanes that have a row two say what is chosen in a k-step, those of the first and second half of its
    columns: first of row ``l / 4``, then of the eighth behind it.
    """
    bits = np.where(is_second, SECOND, FIRST).astype(np.uint32)
    tiles, warps, _, rows, slabs, steps, _ = bits.shape
    # (slab, 64 filters, warp, l / 4, k-step, half, row / 8, column)
    split = bits.reshape(tiles, warps, 2, rows, slabs, steps, 2, 4).transpose(4, 0, 1, 3, 5, 6, 2, 7)
    shifts = np.arange(8, dtype=np.uint32) * 4
    return (split.reshape(slabs, -1, 8) << shifts).sum(axis=2, dtype=np.uint32).view(np.int32)


def _places(positions: np.ndarray, tiling: PairTiling) -> np.ndarray:
    """Where positions are read, bytes from a pixel's place in a group's first channel, and their tap as a bit."""
    spec = tiling.spec
    c, tap = np.divmod(positions, spec.r * spec.s)
    r, s = np.divmod(tap, spec.s)
    offsets = (c * spec.h + r * spec.dilation[0]) * spec.w + s * spec.dilation[1]
    return np.stack([4 * offsets, 1 << tap], axis=-1).astype(np.uint32).view(np.int32)


def pairs(uses: np.ndarray) -> np.ndarray:
    """Positions in pairs (pairs, 2) of which no filter uses both; one that has no partner is its own.

    `uses` (filters, positions) says which filters use which. Those that fit the fewest choose first, of those that fit
    them the one that fits the fewest. Who stays alone is tried again among the next.
    """
    return np.array(list(_paired(uses.astype(np.float32))), np.int64).reshape(-1, 2)


def _paired(uses: np.ndarray) -> Iterator[tuple[int, int]]:
    alone = np.zeros(0, np.int64)
    for start in range(0, uses.shape[1], WINDOW):
        some = np.concatenate([alone, np.arange(start, min(start + WINDOW, uses.shape[1]))])
        fits = uses[:, some].T @ uses[:, some] == 0
        np.fill_diagonal(fits, False)
        # How many each fits of those that are left; infinite for one that is not.
        left = fits.sum(axis=0).astype(np.float64)
        kept = []
        while np.isfinite(left.min()):
            one = int(left.argmin())
            left[one] = np.inf
            partners = np.where(fits[one], left, np.inf)
            other = int(partners.argmin())
            if not np.isfinite(partners[other]):
                kept.append(one)
                continue
            left[other] = np.inf
            left -= fits[one]
            left -= fits[other]
            yield int(some[one]), int(some[other])
        alone = some[sorted(kept)]
    yield from ((int(each), int(each)) for each in alone)
