"""Structure: what kind of zeros a weight has, found from its mask alone; docs/pruning.md draws each kind.

*Lock-step vectors*: V output channels share each non-zero position (c, r, s). *Tile slices*: for a tile of T output
channels whole slices, (c) or (c, r), are zero, and those that are left are nearly full. Both need the channels side by
side, or side by side after a permutation of the output channels within their group.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from tvm_sparse.errors import UsageError

# Lengths along K, longest first: 2 is an FMA pair, 32 a warp (Tan et al. 2022, out-channel vectors).
VECTORS = (64, 32, 16, 8, 4, 2)
# Output channels that one thread block computes, most first.
TILES = (128, 64, 32, 16)
# Kinds of slices, larger ones first.
KINDS = ("c", "cr")
# Of the weights in the slices that are left, this share must be non-zero.
FULL = 0.95
# At least this share of slices must be zero; of slices of vectors so many more than vectors at random places leave
# empty, as training concentrates what is left on some channels by itself.
DEAD, MORE_DEAD = 0.05, 0.1
# A weight of which more than this share is not zero counts as dense: of numbers drawn at random, or in half precision,
# some are zero.
DENSE = 0.9999
# Rows of fewer weights, or so short vectors, are alike by chance once they may be put in any order.
LEAST_ROW, LEAST_PERMUTED = 16, 4

_VECTOR = re.compile(r"vector(\d{1,3})(p?)")
_SLICES = re.compile(r"slice(\d{1,4})(cr?)(?:p|\+vector(\d{1,3}))?")
_SIDE_BY_SIDE = re.compile(r"(?:slice\w+\+)?vector(\d+)")
NAMES = "unstructured, vector16, vector16p, slice64c, slice64cr, slice64cr+vector8, 2:4, channels4, filters, channels"
# Input channels side by side that an instruction multiplies at once in eight bits, and that structures cut into.
FOUR = 4
# Structures of such.
OF_FOURS = ("2:4", "channels4")


def vector_length(name: str) -> int:
    """Output channels side by side that share each non-zero in a structure of that name; 1 where they do not."""
    match = _SIDE_BY_SIDE.fullmatch(name)
    return int(match[1]) if match else 1


@dataclass(frozen=True)
class Structure:
    """A kind of zeros in a weight (K, C / groups, R, S).

    * `name`: ``dense`` (but for a few zeros, such as chance makes), ``empty``, ``unstructured``, ``filters`` (whole
      filters are zero, the others full), ``<N>:<M>`` (at most N non-zeros in every M input channels), ``vector<V>``,
      ``slice<T>c``, ``slice<T>cr``, ``slice<T>cr+vector<V>``. With a ``p`` it needs `order`. ``channels`` and
      ``channels4``, four input channels side by side at one (r, s), are what pruning may ask for; they are found as
      slices of a tile, and as unstructured.
    * `vector`, `tile`: output channels that share their non-zeros, and whose slices are zero together; 1 where there is
      no such thing.
    * `slices`: ``c``: a slice is an input channel of a tile's filters; ``cr``: one row of taps of it.
    * `order`: output channels in the order in which vectors or tiles are side by side; None: as they are.
    """

    name: str
    vector: int = 1
    tile: int = 1
    slices: str = ""
    order: tuple[int, ...] | None = None

    @classmethod
    def named(cls, name: str) -> "Structure":
        """The structure that a name asks for, of any weight; UsageError where it is none that weights are pruned to."""
        if match := _VECTOR.fullmatch(name):
            if int(match[1]) in VECTORS:
                return cls(name, vector=int(match[1]))
        elif match := _SLICES.fullmatch(name):
            tile, vector = int(match[1]), int(match[3] or 1)
            if tile and vector in (1, *VECTORS) and tile % vector == 0:
                return cls(name, vector, tile, match[2])
        elif name in ("unstructured", "filters", "channels", *OF_FOURS):
            return cls(name)
        raise UsageError("pruning", "unknown pattern", name, NAMES)

    @property
    def is_permuted(self) -> bool:
        """Whether vectors or tiles may be of any output channels instead of those side by side."""
        return self.name.startswith(("vector", "slice")) and "p" in self.name

    def fitted(self, channels: int, inputs: int = FOUR) -> "Structure":
        """This structure with vectors and tiles that divide `channels` output channels, and `inputs` (of one group)."""
        if self.name == "channels4" and inputs % FOUR:
            return Structure("unstructured")
        vector, tile = math.gcd(self.vector, channels), math.gcd(self.tile, channels)
        p = "p" if self.is_permuted else ""
        if self.slices:
            inner = f"+vector{vector}" if self.vector > 1 else ""
            return replace(self, name=f"slice{tile}{self.slices}{p}{inner}", vector=vector, tile=tile)
        if self.vector == 1:
            return self
        return replace(self, name=f"vector{vector}{p}", vector=vector) if vector > 1 else Structure("unstructured")

    @classmethod
    def of(cls, mask: np.ndarray, groups: int = 1) -> "Structure":
        """The structure of a mask (K, C / groups, R, S) bool, True where a weight is not zero.

        Of several that hold, the one that skips most: tile slices before vectors, large ones before small ones, what is
        side by side before what must be permuted. In a 1x1 convolution a slice (c) is a vector, and called so up to 64.
        """
        if np.count_nonzero(mask) > DENSE * mask.size:
            return cls("dense")
        if not mask.any():
            return cls("empty")
        return next(_found(mask, groups), cls("unstructured"))


def _found(mask: np.ndarray, groups: int) -> Iterator[Structure]:
    """All that hold, best first."""
    rows = np.packbits(mask.reshape(len(mask), -1), axis=1)
    counts = _slice_counts(mask)
    if np.isin(counts[-1].sum(axis=1), (0, mask[0].size)).all():
        yield Structure("filters")
    vector = _side_by_side(rows, groups)
    is_1x1 = mask.shape[2:] == (1, 1)
    if is_1x1 and vector > 1:
        yield Structure(f"vector{vector}", vector)
    yield from _tile_slices(counts, mask[0].size, groups)
    if vector > 1:
        yield _over_vectors([each[::vector] for each in counts], mask[0].size, groups, vector)
    if (n_of_m := _n_of_m(mask)) is not None:
        yield Structure(n_of_m)
    if mask[0].size >= LEAST_ROW:
        permuted = [_permuted_slices(counts, mask[0].size, groups), _permuted_vectors(rows, groups)]
        for each in reversed(permuted) if is_1x1 else permuted:
            yield from each


def _side_by_side(rows: np.ndarray, groups: int) -> int:
    """The largest V of which all blocks of V rows are alike; 1: none."""
    channels = len(rows) // groups
    # Where a row differs from the one before it, a block must begin.
    begins = np.flatnonzero((rows[1:] != rows[:-1]).any(axis=1)) + 1
    return next((v for v in VECTORS if channels % v == 0 and not (begins % v).any()), 1)


def _slice_counts(mask: np.ndarray) -> list[np.ndarray]:
    """Non-zeros of each filter in each slice: (K, C), and (K, C * R) where that is another."""
    k, c, r, s = mask.shape
    taps = np.zeros((k, c, r), np.uint16)
    for column in range(s):
        taps += mask[..., column]
    channels = np.zeros((k, c), np.uint16)
    for row in range(r):
        channels += taps[..., row]
    return [channels, taps.reshape(k, -1)] if r > 1 else [channels]


def _tiles_of(channels: int) -> list[int]:
    """Tiles that divide a group's output channels, largest first; all of them where they are few."""
    whole = [channels] if TILES[-1] <= channels <= TILES[0] else []
    return sorted({*whole, *(tile for tile in TILES if channels % tile == 0)}, reverse=True)


def _of_tiles(counts: np.ndarray, rows: int) -> np.ndarray:
    """Non-zeros of each tile of so many rows in each slice."""
    return counts.reshape(len(counts) // rows, rows, -1).sum(axis=1, dtype=np.uint32)


def _tile_slices(counts: list[np.ndarray], filter_size: int, groups: int) -> Iterator[Structure]:
    for kind, each in zip(KINDS, counts, strict=False):
        size = filter_size // each.shape[1]
        for tile in _tiles_of(len(each) // groups):
            sums = _of_tiles(each, tile)
            live = np.count_nonzero(sums)
            if live < (1 - DEAD) * sums.size and sums.sum() >= FULL * live * tile * size:
                yield Structure(f"slice{tile}{kind}", tile=tile, slices=kind)


def _over_vectors(heads: list[np.ndarray], filter_size: int, groups: int, vector: int) -> Structure:
    """Vectors, in slices where more of these are zero than random places of as many vectors would leave empty.

    `heads` are the counts of one filter of each vector.
    """
    found: list[tuple[float, Structure]] = []
    density = float(heads[0].sum() / (len(heads[0]) * filter_size))
    for tile in (each for each in _tiles_of(len(heads[0]) * vector // groups) if each % vector == 0):
        for kind, each in zip(KINDS, heads, strict=False):
            dead = _of_tiles(each, tile // vector) == 0
            units = filter_size // each.shape[1] * (tile // vector)
            chance = (1 - density) ** units
            noise = math.sqrt(chance * (1 - chance) / dead.size)
            if dead.mean() > chance + 6 * noise + MORE_DEAD:
                structure = Structure(f"slice{tile}{kind}+vector{vector}", vector, tile, kind)
                found.append((_live_share(dead.mean(), density, units), structure))
    least = min((live for live, _ in found), default=0.0)
    # A tile that is too large, or (c) for (c, r), finds fewer dead slices than there are.
    return next((each for live, each in found if live <= 1.1 * least), Structure(f"vector{vector}", vector))


def _live_share(dead: float, density: float, units: int) -> float:
    """The share of slices that have any vector, or would, were there more of them: some are empty by chance.

    Living slices hold `units` vectors each, at random places: ``1 - dead = live * (1 - (1 - density / live)**units)``.
    """
    low, high = max(density, 1 - dead), 1.0
    for _ in range(30):
        live = (low + high) / 2
        low, high = (low, live) if live * (1 - (1 - density / live) ** units) > 1 - dead else (live, high)
    return high


def _n_of_m(mask: np.ndarray) -> str | None:
    density = mask.mean()
    for m in (each for each in (4, 8, 16) if mask.shape[1] % each == 0):
        # An N:M structure is one that the mask uses up; by chance a sparse mask satisfies a loose one. The first
        # filters tell of most masks that they are none.
        for some in (mask[:4], mask):
            n = int(some.reshape(len(some), -1, m, mask[0, 0].size).sum(axis=2, dtype=np.uint8).max())
            if n == m or density <= 0.9 * n / m:
                break
        else:
            return f"{n}:{m}"
    return None


def _permuted_vectors(rows: np.ndarray, groups: int) -> Iterator[Structure]:
    order, sizes = _classes(rows, groups)
    vector = next((v for v in VECTORS if not (sizes % v).any()), 1)
    if vector >= LEAST_PERMUTED:
        yield Structure(f"vector{vector}p", vector, order=order)


def _permuted_slices(counts: list[np.ndarray], filter_size: int, groups: int) -> Iterator[Structure]:
    for kind, each in zip(KINDS, counts, strict=False):
        live = each > 0
        is_full = each.sum() >= FULL * np.count_nonzero(live) * (filter_size // each.shape[1])
        if is_full and live.mean() < 1 - DEAD:
            order, sizes = _classes(np.packbits(live, axis=1), groups)
            tile = next((tile for tile in TILES if not (sizes % tile).any()), 1)
            if tile > 1:
                yield Structure(f"slice{tile}{kind}p", tile=tile, slices=kind, order=order)


def _classes(rows: np.ndarray, groups: int) -> tuple[tuple[int, ...], np.ndarray]:
    """An order in which rows of a group that are alike are side by side, and how many are alike, class by class."""
    numbers = np.repeat(np.arange(groups, dtype=">u4"), len(rows) // groups)
    keyed = np.ascontiguousarray(np.hstack([numbers.view(np.uint8).reshape(len(rows), 4), rows]))
    keys = keyed.view(np.dtype((np.void, keyed.shape[1]))).ravel()
    _, inverse, sizes = np.unique(keys, return_inverse=True, return_counts=True)
    return tuple(np.argsort(inverse, kind="stable").tolist()), sizes
