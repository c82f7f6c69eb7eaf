"""The weights of filters that share their positions, as tensor cores read them, and where each position is found."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tvm_sparse.conv.structure import Structure
from tvm_sparse.scheduling.cuda.library.kernel_library import WARP
from tvm_sparse.scheduling.cuda.slice.tiling import FILTERS, MOST_IN_WORDS, PIXELS, QUAD, SliceTiling


def packed(weight: np.ndarray, tiling: SliceTiling) -> np.ndarray:
    """A weight (K, C / groups, R, S) float32 as int32 (filter tiles * chunks, stride, 4): rows of 16-byte units.

    A row holds what codegen/cuda/slice.cu calls a chunk's weights. Tiles have as many chunks each, of about as
    many of the channels that any of their filters uses.
    """
    order = Structure.of(weight != 0, tiling.spec.groups).order
    filters = np.arange(len(weight)) if order is None else np.array(order)
    by_tile = filters.reshape(tiling.k_tiles, tiling.filter_warps, tiling.warp_filters)
    live = [np.flatnonzero(weight[each.ravel()].any(axis=(0, 2, 3))) for each in by_tile]
    chunks = max(1, *(-(-each.size // tiling.channels) for each in live))
    rows = [
        _Chunk.of(weight, tile, channels, tiling)
        for tile, used in zip(by_tile, live, strict=True)
        for channels in np.array_split(used, chunks)
    ]
    stride = tiling.first_step + tiling.step_units * max(len(row.steps) for row in rows)
    out = np.zeros((len(rows), stride * 4), np.int32)
    for line, row in zip(out, rows, strict=True):
        line[: tiling.first_step * 4] = row.header
        line[tiling.first_step * 4 : tiling.first_step * 4 + row.steps.size] = row.steps.ravel()
    return out.reshape(len(rows), stride, 4)


@dataclass(frozen=True)
class _Chunk:
    """A row of the packed weights: `header` int32 (first_step * 4,), `steps` int32 (k-steps, step_units * 4)."""

    header: np.ndarray
    steps: np.ndarray

    @classmethod
    def of(cls, weight: np.ndarray, tile: np.ndarray, channels: np.ndarray, tiling: SliceTiling) -> "_Chunk":
        """What the filters of a block, `tile` (filter_warps, warp_filters), need of some channels."""
        in_words = _are_words_worth_it(weight[tile.ravel()][:, channels], tiling)
        steps = [_steps(weight[filters][:, channels], tiling, in_words) for filters in tile]
        header = np.zeros(tiling.first_step * 4, np.int32)
        header[1 : tiling.first_channel - 2] = np.cumsum([len(each) for each in steps])
        header[tiling.first_channel - 2] = in_words
        header[tiling.first_channel - 1] = channels.size
        header[tiling.first_channel : tiling.first_channel + channels.size] = channels
        header[tiling.filters_at : tiling.filters_at + tiling.filters] = tile.ravel()
        return cls(header, np.concatenate(steps))


def _places(weight: np.ndarray, tiling: SliceTiling) -> tuple[np.ndarray, np.ndarray]:
    """Positions that filters use of `weight` (filters, channels of a chunk, R, S): (c, r, s), and where from a pixel.

    That is how many elements further each is read.
    """
    used = np.array(np.nonzero((weight != 0).any(axis=0)))
    taps = np.array([[tiling.offset(r, s) for s in range(tiling.spec.s)] for r in range(tiling.spec.r)], np.int64)
    return used, used[0] * tiling.channel_pitch + taps[used[1], used[2]]


def _are_words_worth_it(weight: np.ndarray, tiling: SliceTiling) -> bool:
    """Whether most words that a chunk's filters use have two positions."""
    _, elements = _places(weight, tiling)
    return tiling.may_read_words and 2 * len(np.unique(elements // 2)) <= MOST_IN_WORDS * len(elements)


def _steps(weight: np.ndarray, tiling: SliceTiling, in_words: bool) -> np.ndarray:
    """The k-steps of a warp, int32 (k-steps, step_units * 4); `weight` is (filters, channels of a chunk, R, S).

    Behind the last position there are zeros; their input is that of the last one, no other that might be infinite.
    """
    (c, r, s), elements = _places(weight, tiling)
    if not c.size:
        return np.zeros((0, tiling.step_units * 4), np.int32)
    if in_words:
        return _steps_of_words(weight[:, c, r, s], elements, tiling)
    offsets = tiling.element_bytes * elements
    stride_w = 1 if tiling.is_pointwise else tiling.spec.stride[1]
    places = without_conflicts(offsets, tiling.element_bytes, stride_w)
    steps = -(-len(places) // (QUAD * tiling.quads))
    padded = np.full(steps * QUAD * tiling.quads, places[-1])
    padded[: len(places)] = places
    values = np.zeros((len(weight), len(padded)), np.float32)
    values[:, : len(places)] = weight[:, c[places], r[places], s[places]]
    # (k-step, lane, read): where each of the four lanes of a pixel reads.
    where = offsets[padded].astype(np.int32).reshape(steps, tiling.quads, QUAD).transpose(0, 2, 1)
    fragments = _fragments(values.reshape(len(weight), steps, tiling.quads, QUAD), tiling.spec.dtype)
    return np.concatenate([fragments.reshape(steps, -1), where.reshape(steps, -1)], axis=1)


def _steps_of_words(weights: np.ndarray, elements: np.ndarray, tiling: SliceTiling) -> np.ndarray:
    """The same of positions' `weights` (filters, positions), found so many `elements` from a pixel, 4 bytes a read.

    Of a word with one position the other half does not count: what is there might be infinite.
    """
    words, word_of = np.unique(elements // 2, return_inverse=True)
    order = without_conflicts(4 * words, tiling.element_bytes, tiling.spec.stride[1])
    rank = np.empty(len(words), np.int64)
    rank[order] = np.arange(len(words))
    steps = -(-len(words) // (2 * QUAD))
    values = np.zeros((len(weights), steps * 2 * QUAD, 2), np.float32)
    values[:, rank[word_of], elements % 2] = weights
    counts, places = np.zeros((steps * 2 * QUAD, 2), bool), np.full(steps * 2 * QUAD, 4 * words[order[-1]])
    counts[rank[word_of], elements % 2] = True
    places[: len(words)] = 4 * words[order]
    masks = (counts * np.array([0xFFFF, 0xFFFF0000])).sum(axis=1)
    where = np.stack([places, masks], axis=1).astype(np.uint32).view(np.int32)
    # A word's halves are two reads of a lane.
    split = values.reshape(len(weights), steps, 2, QUAD, 2).transpose(0, 1, 2, 4, 3)
    fragments = _fragments(split.reshape(len(weights), steps, 2 * 2, QUAD), tiling.spec.dtype)
    where = where.reshape(steps, 2, QUAD, 2).transpose(0, 2, 1, 3)
    return np.concatenate([fragments.reshape(steps, -1), where.reshape(steps, -1)], axis=1)


def _fragments(values: np.ndarray, dtype: str) -> np.ndarray:
    """Weights (filters, k-steps, reads, 4) as a warp's registers of A, int32 (k-steps, filters / 16, 32, 4).

    PTX ISA, "Matrix fragments for mma.m16n8k8" and "m16n8k16": register j of lane l has row ``l / 4 + 8 * (j % 2)``,
    and of column ``l % 4`` read ``j / 2``; in half precision two reads, ``2 * (j / 2)`` and the next.
    """
    filters, steps, reads, _ = values.shape
    # (m, j % 2, l / 4, k-step, j / 2, half, l % 4)
    split = values.reshape(filters // FILTERS, 2, FILTERS // 2, steps, 2, reads // 2, QUAD)
    # (k-step, m, l / 4, l % 4, j / 2, j % 2, half)
    registers = split.transpose(3, 0, 2, 6, 4, 1, 5)
    stored = np.ascontiguousarray(registers, dtype=np.dtype(dtype))
    return stored.view(np.int32).reshape(steps, filters // FILTERS, WARP, 4)


def without_conflicts(offsets: np.ndarray, element_bytes: int, stride_w: int) -> np.ndarray:
    """An order of byte offsets (positions,) in which those of each four are found in different banks, as far as may be.

    Each is read for 8 pixels, `stride_w` elements from each other. Where no fourth fits three, one is taken that does
    not, which costs another access.
    """
    pixels = np.arange(PIXELS) * stride_w * element_bytes
    banks = ((offsets[:, None] + pixels) // 4) % WARP
    masks = np.bitwise_or.reduce(np.int64(1) << banks, axis=1)
    by_mask: dict[int, list[int]] = defaultdict(list)
    for place in reversed(range(len(offsets))):
        by_mask[int(masks[place])].append(place)
    return np.fromiter(_dealt(by_mask), np.int64, len(offsets))


def _dealt(by_mask: dict[int, list[int]]) -> Iterator[int]:
    """Positions by the banks they take, four by four: of most that are alike first."""
    while by_mask:
        taken = 0
        for _ in range(QUAD):
            if not by_mask:
                return
            ranked = sorted(by_mask, key=lambda mask: -len(by_mask[mask]))
            fitting = next((mask for mask in ranked if not mask & taken), ranked[0])
            taken |= fitting
            yield by_mask[fitting].pop()
            if not by_mask[fitting]:
                del by_mask[fitting]
