"""Register tiles of dense kernels: so many pixels, or images, by so many vectors of filters.

A vector of weights is loaded once for all pixels of a tile, and a pixel once for all its vectors. The more of both the
better, but their sums, the weights and where need be a pixel have a register each; and what lies behind the last pixel,
or behind the last filter, is computed in vain.
"""

import math
from collections.abc import Sequence
from itertools import product

from tvm_sparse.scheduling.cpu.fit import CpuFit
from tvm_sparse.target.cpu_info import HIDING_SUMS, CpuInfo

# Vectors of filters of a tile, the better first; where there are no multiple of these, one of the others.
VECTORS, OTHER_VECTORS = 2, (3, 5, 7, 1)
# With many registers these, where they are the better ones (`nchwc_cut`).
MOST_VECTORS = 4
# Pixels that a row lacks to fill its last tile at most, as a share: 17 are two tiles of nine.
MOST_REST = 1 / 6
# Images and vectors of filters of a linear layer's tile at most, and the sums' share of the registers.
IMAGES, LINEAR_VECTORS, SUMS_SHARE = 9, 8, 0.75
# How much longer a linear layer's multiply-add takes where each vector, or each image, is read for it alone.
LINEAR_LOADING = 0.1
# Pixels of a depthwise tile whose sums hide a multiply-add's latency: each has several taps beside each other.
DEPTHWISE_LEAST = 4


def pixels_of_tile(pixels: int, cpu: CpuInfo, vectors: int = VECTORS, are_apart: bool = False) -> int:
    """How many of so many `pixels` are computed at once, or 0 where too many would be computed in vain.

    Where channels of the input `are_apart`, LLVM loads some pixels ahead, which take an eighth of the registers.
    """
    least = -(-HIDING_SUMS // vectors)
    spare = cpu.registers // 8 if are_apart else 0
    tile = best_tile(pixels, cpu.tile_pixels(vectors, spare), least, loading(cpu))
    return tile if tile and _taken(pixels, tile, least, 0) <= (1 + MOST_REST) * pixels else 0


def best_tile(pixels: int, most: int, least: int = 1, loading: float = 1.0) -> int:
    """Of so many `pixels` how many at once take least, `most` at most; 0 where there is room for none."""
    offered = range(1, min(pixels, most) + 1)
    return min(offered, key=lambda tile: _taken(pixels, tile, least, loading), default=0)


def depthwise_tile(pixels: int, cpu: CpuInfo) -> int:
    """How many of so many `pixels` of a row are computed at once, such that few are twice."""
    return best_tile(pixels, CpuFit.of(cpu).depthwise_pixels, DEPTHWISE_LEAST)


def linear_tile(images: int, filters: int, lanes: int, registers: int) -> tuple[int, int]:
    """Images and vectors of filters of a linear layer's tile, which goes beyond the last ones as little as it can."""

    def cost(tile: tuple[int, int]) -> float:
        of_images, vectors = tile
        rows = _taken(images, of_images, 1, 0)
        return (
            rows * _taken(filters, vectors * lanes, 1, 0) * (1 + LINEAR_LOADING / of_images + LINEAR_LOADING / vectors)
        )

    offered = product(range(1, IMAGES + 1), range(1, LINEAR_VECTORS + 1))
    return min((each for each in offered if math.prod(each) <= registers * SUMS_SHARE), key=cost)


def vectors_of_tile(count: int, preferred: Sequence[int]) -> list[int]:
    """Vectors of filters of a tile that divide so many, the better first."""
    return [each for each in (*preferred, *OTHER_VECTORS) if count % each == 0]


def loading(cpu: CpuInfo) -> float:
    """How long a tile takes to load its weights, in the time of so many of its pixels."""
    fit = CpuFit.of(cpu)
    return fit.loading_cycles / fit.product_cycles


def _taken(pixels: int, tile: int, least: int, loading: float) -> float:
    """How long tiles of `tile` pixels take; fewer than `least` wait for each other's sums as long as these take."""
    return -(-pixels // tile) * (max(tile, least) + loading)
