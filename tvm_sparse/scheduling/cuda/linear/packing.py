"""The non-zeros of a linear layer as the warps of its kernel for many images read them."""

import numpy as np

from tvm_sparse.scheduling.cuda.linear.tiling import POSITIONS, STEPS, UNITS, WARPS, LinearTiling
from tvm_sparse.scheduling.tir_writing import places_of_pixel, stretch


def packed(weight: np.ndarray, tiling: LinearTiling) -> np.ndarray:
    """A weight (K, C / groups, R, S) as int32 (streams, stride, 4), a stream of 16-byte units for each warp.

    Streams are in order of blocks' filters, then parts, then warps, and consist of steps (`UNITS`), chunk after chunk
    and in each row after row, that is `shared` filters. A row begins with a step that holds in its first two numbers
    how many steps follow and which row of the block it is; these have four positions each. Of one filter a step is four
    (value, byte offset); of several four byte offsets, a unit, and for each position the filters' values. What is not
    filled is zeros and the offset of the row of zeros. The rows of a chunk are dealt out, so that warps have about as
    many steps, and as many rows each, also where the block has filters that the layer lacks.
    """
    vector, inside, values = _positions(weight, tiling)
    parts, chunks, rows = tiling.parts, tiling.chunks, tiling.filters // tiling.shared
    part, inside = np.divmod(inside, tiling.part_inputs)
    chunk, inside = np.divmod(inside, tiling.chunk)
    block, row = np.divmod(vector, rows)
    cell = ((block * parts + part) * chunks + chunk) * rows + row
    counts = np.bincount(cell, minlength=tiling.grid[1] * parts * chunks * rows)
    begins, total = _begins(-(-counts.reshape(-1, chunks, rows) // POSITIONS) + 1)
    units, shared = UNITS[tiling.shared], tiling.shared
    steps = -(-total // STEPS[shared]) * STEPS[shared]
    out = np.zeros((tiling.streams, steps, units * 4), np.int32)
    if shared == 1:
        out[:, :, 1::2] = tiling.zero
    else:
        out[:, :, :POSITIONS] = tiling.zero
    stream, first = (each.reshape(-1) for each in begins)
    out[stream, first, 0], out[stream, first, 1] = -(-counts // POSITIONS), np.arange(counts.size) % rows
    order = np.argsort(cell, kind="stable")
    cell, inside, values = cell[order], inside[order], values[order]
    number = np.arange(cell.size) - np.repeat(np.cumsum(counts) - counts, counts)
    stream, step, place = stream[cell], first[cell] + 1 + number // POSITIONS, number % POSITIONS
    if shared == 1:
        out[stream, step, 2 * place] = values[:, 0].view(np.int32)
        out[stream, step, 2 * place + 1] = tiling.offsets(inside)
    else:
        out[stream, step, place] = tiling.offsets(inside)
        places = POSITIONS + shared * place[:, None] + np.arange(shared)
        out[stream[:, None], step[:, None], places] = values.view(np.int32)
    return out.reshape(tiling.streams, steps * units, 4)


def _positions(weight: np.ndarray, tiling: LinearTiling) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where `shared` filters have a non-zero: which of these filters, the input, their values (positions, shared)."""
    values, places, pointers = stretch(weight, places_of_pixel(tiling.spec))
    filters = np.repeat(np.arange(len(weight)), np.diff(pointers))
    values, places, shared = values[: filters.size], places[: filters.size].astype(np.int64), tiling.shared
    if shared == 1:
        return filters, places, values[:, None]
    found, which = np.unique(filters // shared * tiling.inputs + places, return_inverse=True)
    together = np.zeros((found.size, shared), np.float32)
    together[which, filters % shared] = values
    return found // tiling.inputs, found % tiling.inputs, together


def _begins(steps: np.ndarray) -> tuple[tuple[np.ndarray, np.ndarray], int]:
    """The stream of each row and its first step there, from its `steps` (blocks, chunks, rows); the longest stream.

    The longest rows are dealt to the warps in turns, there and back.
    """
    blocks, chunks, rows = steps.shape
    turn, warp = np.divmod(np.arange(rows), WARPS)
    warp = np.where(turn % 2, WARPS - 1 - warp, warp)
    order = np.argsort(-steps, axis=2, kind="stable")
    # Of each warp: its rows of all chunks, one after the other.
    dealt = np.empty((blocks, WARPS, chunks, rows // WARPS), np.int64)
    dealt[:, warp, :, turn] = np.take_along_axis(steps, order, 2).transpose(2, 0, 1)
    ends = np.cumsum(dealt.reshape(blocks, WARPS, -1), axis=2)
    first = (ends.reshape(dealt.shape) - dealt)[:, warp, :, turn].transpose(1, 2, 0)
    stream, begin = np.empty_like(steps), np.empty_like(steps)
    np.put_along_axis(stream, order, np.arange(blocks)[:, None, None] * WARPS + warp, 2)
    np.put_along_axis(begin, order, first, 2)
    return (stream, begin), int(ends.max())
