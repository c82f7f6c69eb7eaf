"""How a generated CUDA kernel tiles its spatial axes: what is worth a trial, and random tiles that are.

An axis is tiled into blocks, virtual threads, threads and two levels within a thread, outermost first. MetaSchedule
draws tiles that know nothing of each other or of code size: of 64 filters on 64 images of 56x56 one draw of some
thousand is worth a trial, and it takes milliseconds for each. Here a draw takes microseconds.
"""

import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

# The spatial axes in the order in which threads are numbered.
AXES = "nkyx"
BLOCK, VIRTUAL, THREAD, OUTER, INNER = LEVELS = range(5)
# Multiply-adds of a kernel: nvcc takes up to 6 ms for each, 61 s for 10,240 of operator 4 on two busy cores. Virtual
# threads are laid out one after the other, each with branches and loads of its own.
MAX_MULTIPLY_ADDS = 12_000
# Accumulators of a thread: with many more, and the inputs that are loaded ahead, its 255 registers do not suffice.
MAX_ACCUMULATORS = 64
# Threads that run the same instructions, and those of a block at most.
WARP, MAX_THREADS = 32, 1024
# Draws in a row without one that is worth a trial, after which none is expected.
MAX_DRAWS = 200_000

# Levels that a prime factor is drawn from. Most of large maps has to be blocks, as a thread computes few pixels.
_DRAWN = (BLOCK, BLOCK, BLOCK, VIRTUAL, THREAD, OUTER, INNER)

# Extents of each axis at the five levels.
Tiles = Mapping[str, list[int]]


@dataclass(frozen=True)
class TileRules:
    """Which tiles are worth a trial for a weight of `nnz` non-zeros, with `filters_group` filters a group."""

    nnz: int
    filters_group: int

    def obstacle_of(self, tiles: Tiles) -> str:
        """Which of multiply-adds, accumulators, threads, warps and groups is out of its bounds, or ""."""
        own = {axis: tile[VIRTUAL] * tile[OUTER] * tile[INNER] for axis, tile in tiles.items()}
        pixels = own["n"] * own["y"] * own["x"]
        if self.nnz * pixels > MAX_MULTIPLY_ADDS:
            return f"more than {MAX_MULTIPLY_ADDS} multiply-adds"
        if pixels * own["k"] > MAX_ACCUMULATORS:
            return f"more than {MAX_ACCUMULATORS} accumulators"
        if not WARP <= math.prod(tile[THREAD] for tile in tiles.values()) <= MAX_THREADS:
            return f"a block has fewer than {WARP} threads or more than {MAX_THREADS}"
        if tiles["k"][THREAD] > 1 and tiles["y"][THREAD] * tiles["x"][THREAD] % WARP:
            return "threads of a warp have different filters, and so different code"
        folded = tiles["k"][OUTER] * tiles["k"][INNER]
        if folded % self.filters_group and self.filters_group % folded:
            return f"filters of a thread belong to several of the groups of {self.filters_group}"
        return ""

    def draws(self, extents: Mapping[str, int], choose: random.Random) -> Iterator[dict[str, list[int]]]:
        """Tiles of axes of `extents` that are not refused, at random, without end unless there are none."""
        primes = {axis: _primes(extent) for axis, extent in extents.items()}
        fails = 0
        while fails < MAX_DRAWS:
            tiles = {axis: _tile(factors, choose) for axis, factors in primes.items()}
            fails += 1
            if not self.obstacle_of(tiles):
                fails = 0
                yield tiles


def _tile(factors: list[int], choose: random.Random) -> list[int]:
    """Each prime factor at one of the levels."""
    tile = [1] * len(LEVELS)
    for factor in factors:
        tile[_DRAWN[int(choose.random() * len(_DRAWN))]] *= factor
    return tile


def _primes(number: int) -> list[int]:
    """The prime factors of a number, ascending."""
    found, factor = [], 2
    while number > 1:
        while number % factor == 0:
            found.append(factor)
            number //= factor
        factor += 1
    return found
