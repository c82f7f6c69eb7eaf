"""Weights as sparse tensor cores read them: positions in fours of which no filter of a tile uses more than two."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from tvm_sparse.conv.dtypes import FLOAT32
from tvm_sparse.conv.storage import stored
from tvm_sparse.scheduling.cuda.library.half_parts import exponents_of, factors_of, half_parts
from tvm_sparse.scheduling.cuda.quad.tiling import K_BLOCK, QuadTiling

# Fours are sought among so many positions at a time, so that those of a channel stay near each other: what its taps
# read is in the cache.
WINDOW = 256


def packed(weight: np.ndarray, tiling: QuadTiling) -> np.ndarray:
    """A weight (K, C / groups, R, S) float32, of half precision rounded, as int32 (filter tiles * k-blocks, units, 4).

    A row holds what codegen/cuda/quad.cu calls a k-block's weights. Tiles have as many rows each; the first one
    says how many k-blocks count, and how sums are scaled. Zeros fill up a group's last filters.
    """
    groups = weight.reshape(tiling.spec.groups, tiling.group_filters, -1)
    filled = np.pad(groups, ((0, 0), (0, tiling.filled), (0, 0)))
    tiles = [_Tile.of(each, tiling) for each in filled.reshape(tiling.k_tiles, tiling.filters, -1)]
    most = max(each.k_blocks for each in tiles)
    out = np.zeros((len(tiles), 1 + most, tiling.units, 4), np.int32)
    for rows, tile in zip(out, tiles, strict=True):
        k_blocks = rows[1 : 1 + tile.k_blocks]
        k_blocks[:, : tiling.choices_at] = tile.fragments.reshape(tile.k_blocks, -1, 4)
        k_blocks[:, tiling.choices_at : tiling.positions_at] = tile.choices.reshape(tile.k_blocks, -1, 4)
        k_blocks[:, tiling.positions_at :] = _places(tile.positions, tiling).reshape(tile.k_blocks, -1, 4)
        rows[0, 0, 0] = tile.k_blocks
        rows[0, 1 : 1 + tiling.filters // 4] = tile.factors.view(np.int32).reshape(-1, 4)
    return out.reshape(-1, tiling.units, 4)


class _Tile(NamedTuple):
    """A block's filters: int32 fragments (k-blocks, filters, 8 or 16), choices (k-blocks, filters), positions (.., 32).

    `factors` (filters,) float32, powers of two, is what sums are multiplied with.
    """

    fragments: np.ndarray
    choices: np.ndarray
    positions: np.ndarray
    factors: np.ndarray

    @property
    def k_blocks(self) -> int:
        return len(self.positions)

    @classmethod
    def of(cls, weight: np.ndarray, tiling: QuadTiling) -> "_Tile":
        """Of a tile's weights (filters, positions)."""
        dtype = tiling.spec.dtype
        live = np.flatnonzero(weight.any(axis=0))
        found = quads(weight[:, live] != 0)
        k_blocks = max(1, -(-len(found) // (K_BLOCK // 4)))
        # What fills up has no weights; its input is that of the first position, which is read anyway.
        padded = np.pad(found, ((0, k_blocks * (K_BLOCK // 4) - len(found)), (0, 0)), constant_values=-1)
        has_weight = padded >= 0
        every = live[np.maximum(padded, 0)] if live.size else np.zeros_like(padded)
        exponents = exponents_of(weight) if dtype == FLOAT32 else np.zeros(len(weight), np.int32)
        columns = np.ldexp(weight[:, every] * has_weight, -exponents[:, None, None])
        # Of each four the two that count, in their order: those that are not zero come first.
        chosen = np.sort(np.argsort(columns == 0, axis=2, kind="stable")[:, :, :2], axis=2)
        values = np.take_along_axis(columns, chosen, axis=2)
        numbers = half_parts(values)[: tiling.numbers] if dtype == FLOAT32 else stored(values, dtype)[None]
        return cls(
            _fragments(numbers.reshape(len(numbers), -1, 4, 2, 8, k_blocks, 2, 4, 2)),
            _choices(chosen.reshape(-1, 4, 2, 8, k_blocks, 2, 4, 2)),
            every.reshape(k_blocks, K_BLOCK),
            factors_of(exponents),
        )


def _fragments(numbers: np.ndarray) -> np.ndarray:
    """Numbers (1 or 2 parts, 64 filters, warp, row / 8, row, k-block, quad / 4, quad, chosen) as registers of A.

    PTX ISA, "Register fragments for wgmma.m64nNk16": register j of lane l has row ``l / 4 + 8 * (j % 2)``, and of those
    numbers that are stored the two of quad ``l % 4 + 4 * (j / 2)``.
    """
    # (k-block, 64 filters, part, warp, l / 4, l % 4, j / 2, j % 2)
    return np.ascontiguousarray(numbers.transpose(5, 1, 0, 2, 4, 7, 6, 3, 8)).view(np.int32)


def _choices(chosen: np.ndarray) -> np.ndarray:
    """Which two of four each filter has, four bits each, as lanes say it: (k-block, 64 filters, warp, row, 2) int32.

    Of the four lanes that have a row the first two say what is chosen, of the first and second half of its quads:
    first of row ``l / 4``, then of the eighth behind it (PTX ISA, "Sparse matrix storage").
    """
    bits = (chosen[..., 0] + 4 * chosen[..., 1]).astype(np.uint32)
    # (k-block, 64 filters, warp, row, half, row / 8, quad)
    split = bits.transpose(4, 0, 1, 3, 5, 2, 6)
    shifts = np.arange(8, dtype=np.uint32) * 4
    return (split.reshape(len(split), -1, 8) << shifts).sum(axis=2, dtype=np.uint32).view(np.int32)


def _places(positions: np.ndarray, tiling: QuadTiling) -> np.ndarray:
    """Where positions are read, bytes from a pixel's place in a group's first channel, and their tap as a bit."""
    spec, channels = tiling.spec, tiling.spec.input_shape[1]
    c, tap = np.divmod(positions, spec.r * spec.s)
    r, s = np.divmod(tap, spec.s)
    t, c = np.divmod(c, channels // spec.groups)
    c += t * tiling.volumes.dilation * channels
    offsets = (c * spec.h + r * spec.dilation[0]) * spec.w + s * spec.dilation[1]
    return (
        np.stack([tiling.element_bytes * offsets, 1 << (t * spec.r * spec.s + tap)], axis=-1)
        .astype(np.uint32)
        .view(np.int32)
    )


def quads(uses: np.ndarray) -> np.ndarray:
    """Positions in fours (quads, 4) of which no filter uses more than two; -1 fills up those that found fewer.

    `uses` (filters, positions), bool, says which filters use which. Of those that are left the most used position
    begins; then comes, of those that fit, the one with which the fewest filters have two, and at last the most used
    one. Those that are no four are tried again among the next.
    """
    found = list(_quads(uses))
    return np.array([each + [-1] * (4 - len(each)) for each in found], np.int64).reshape(-1, 4)


def _quads(uses: np.ndarray) -> Iterator[list[int]]:
    left = np.zeros(0, np.int64)
    for start in range(0, uses.shape[1], WINDOW):
        some = np.concatenate([left, np.arange(start, min(start + WINDOW, uses.shape[1]))])
        is_last = start + WINDOW >= uses.shape[1]
        kept: list[int] = []
        for members in _fours(uses[:, some]):
            # Where hardly any fit, not all can wait.
            if len(members) == 4 or is_last or len(kept) > WINDOW:
                yield [int(some[each]) for each in members]
            else:
                kept += members
        left = some[sorted(kept)]


def _fours(uses: np.ndarray) -> Iterator[list[int]]:
    """All positions in fours that fit, or fewer where no other does."""
    often, users = uses.sum(axis=0, dtype=np.float32), _bits(uses)
    # By two positions, what it costs that filters use both: first their number, then that the second is used seldom.
    costs = uses.T.astype(np.float32) @ uses * len(uses) - often
    gone = np.zeros(uses.shape[1], np.float32)
    for first in (-often).argsort(kind="stable").tolist():
        if not gone[first]:
            yield _four(first, users, often, costs, gone)


def _four(first: int, users: np.ndarray, often: np.ndarray, costs: np.ndarray, gone: np.ndarray) -> list[int]:
    """`first` and up to three others that fit; `gone` is infinite where a position is taken, and changed."""
    members, full = [first], np.zeros(len(gone), bool)
    gone[first] = np.inf

    def take(cost: np.ndarray) -> bool:
        other = int(np.where(full, np.inf, cost + gone).argmin())
        if full[other] or gone[other]:
            return False
        gone[other] = np.inf
        members.append(other)
        return True

    def fill(filters: np.ndarray) -> None:
        # These have two, and no third.
        np.logical_or(full, (users & filters[:, None]).any(axis=0), out=full)

    if take(costs[first]):
        one, two = users[:, first], users[:, members[1]]
        fill(one & two)
        if take(costs[first] + costs[members[1]] + often):
            fill((one ^ two) & users[:, members[2]])
            take(-often)
    return members


def _bits(uses: np.ndarray) -> np.ndarray:
    """The filters of each position as bits: (filters / 64, positions) uint64."""
    packed = np.packbits(np.pad(uses, ((0, -len(uses) % 64), (0, 0))), axis=0)
    return packed.T.copy().view(np.uint64).T.copy()
