"""The weight of a linear layer as the writers of its kernel on tensor cores read it."""

from collections.abc import Iterator

import numpy as np

from tvm_sparse.scheduling.cuda.linear_tensor.tiling import K_BLOCK, QUAD, LinearTensorTiling

# Banks of shared memory, 4 bytes each.
BANKS = 32


def packed(weight: np.ndarray, tiling: LinearTensorTiling) -> np.ndarray:
    """A weight (K, C, 1, 1) float32 as int32 (units, 1, 4), 16 bytes a unit.

    Of a dense layer all k-blocks, tile after tile, each as it lies in shared memory (`LinearTensorTiling.place`). Of
    others lists: where each k-block's begins, in quads of non-zeros, and where the last one ends; then the values of
    all; then their places in bytes, uint16. A list is filled up to whole quads by one of its own non-zeros.
    """
    matrix = weight.reshape(len(weight), -1)
    units = _dense(matrix, tiling) if tiling.dense else _lists(matrix, tiling)
    return units.view(np.int32).reshape(-1, 1, 4)


def _tiles(matrix: np.ndarray, tiling: LinearTensorTiling) -> Iterator[np.ndarray]:
    """Rows of a matrix (K, C), tile after tile; the last one may have fewer."""
    return (matrix[i : i + tiling.filters] for i in range(0, len(matrix), tiling.filters))


def _dense(matrix: np.ndarray, tiling: LinearTensorTiling) -> np.ndarray:
    k_blocks = np.zeros((tiling.tiles, tiling.k_blocks, tiling.places), np.float32)
    inputs, filters = np.ogrid[:K_BLOCK, : tiling.filters]
    place = tiling.place(filters, inputs)
    for tile, to in zip(_tiles(matrix, tiling), k_blocks, strict=True):
        full = np.zeros((tiling.k_blocks * K_BLOCK, tiling.filters), np.float32)
        full[: tile.shape[1], : len(tile)] = tile.T
        to[:, place] = full.reshape(tiling.k_blocks, K_BLOCK, tiling.filters)
    return k_blocks


def _lists(matrix: np.ndarray, tiling: LinearTensorTiling) -> np.ndarray:
    quads, values, places = zip(*(_tile_lists(tile, tiling) for tile in _tiles(matrix, tiling)), strict=True)
    begins = np.concatenate([[0], np.cumsum(np.concatenate(quads))]).astype(np.int32)
    head = np.pad(begins, (0, -begins.size % 4)).tobytes()
    body = b"".join([head, *(each.tobytes() for each in (*values, *places))])
    return np.frombuffer(body + bytes(-len(body) % 16), np.int32)


def _tile_lists(tile: np.ndarray, tiling: LinearTensorTiling) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Quads of each k-block of a tile's weights (filters, C), their values float32 and their places in bytes uint16.

    Threads side by side write one after the other of a k-block's non-zeros, each the first of its quad and so on. These
    come in rounds in which each bank of shared memory has one at most.
    """
    filters, inputs = np.nonzero(tile)
    values, place = tile[filters, inputs], tiling.place(filters, inputs % K_BLOCK)
    cell = inputs // K_BLOCK * BANKS + place % BANKS
    by_cell = np.argsort(cell.astype(np.uint16) if tiling.k_blocks * BANKS <= 1 << 16 else cell, kind="stable")
    counts = np.bincount(cell, minlength=tiling.k_blocks * BANKS).reshape(-1, BANKS)
    order = by_cell[_in_rounds(counts)]
    sizes = counts.sum(axis=1)
    quads, end = -(-sizes // QUAD), np.cumsum(sizes)
    # Filled up by repeating a list's last one.
    k_block = np.repeat(np.arange(tiling.k_blocks), quads * QUAD)
    number = np.arange(k_block.size) - np.repeat(np.cumsum(quads) - quads, quads * QUAD) * QUAD
    # Of a quad, which lies together, numbers are as many apart as there are quads.
    quad, which = np.divmod(number, QUAD)
    number = which * quads[k_block] + quad
    taken = order[np.minimum((end - sizes)[k_block] + number, end[k_block] - 1)]
    return quads, values[taken], (place[taken] * 4).astype(np.uint16)


def _in_rounds(counts: np.ndarray) -> np.ndarray:
    """The order of elements that lie k-block after k-block and bank after bank, `counts` (k-blocks, banks) of them.

    In each k-block first the first one of each bank, then the second one of each, and so on.
    """
    first = np.cumsum(counts).reshape(counts.shape) - counts
    to = first[:, 0].copy()
    order = np.empty(counts.sum(), np.int64)
    for number in range(int(counts.max(initial=0))):
        is_there = counts > number
        k_block, bank = np.nonzero(is_there)
        place = np.cumsum(is_there, axis=1) - 1
        order[to[k_block] + place[k_block, bank]] = first[k_block, bank] + number
        to += is_there.sum(axis=1)
    return order
