"""The weights of filters that share planes, as tensor cores read them, and where each plane is."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from tvm_sparse.conv.structure import Structure
from tvm_sparse.scheduling.cuda.library.half_parts import exponents_of, factors_of, half_parts
from tvm_sparse.scheduling.cuda.plane.tiling import FILTERS, GROUP, PlaneTiling


def packed(weight: np.ndarray, tiling: PlaneTiling) -> np.ndarray:
    """A weight (K, C / groups, R, S) float32 as int32 (filter tiles, units, 4).

    A row holds what codegen/cuda/plane.cu calls a tile's weights.
    """
    order = Structure.of(weight != 0, tiling.spec.groups).order
    filters = np.arange(len(weight)) if order is None else np.array(order)
    rows = [_tile(weight, each, tiling) for each in filters.reshape(tiling.k_tiles, FILTERS)]
    out = np.zeros((len(rows), max(map(len, rows)), 4), np.int32)
    for line, row in zip(out, rows, strict=True):
        line[: len(row)] = row
    return out


class _Planes(NamedTuple):
    """Eight planes, or fewer: `channels`, how much further than these they are read, and the taps that use them."""

    channels: np.ndarray
    base: tuple[int, int]
    taps: list[tuple[int, int]]


class _Half(NamedTuple):
    """Half of a k-step: where its planes are among a slot's places, and its weights (filters, 8)."""

    place: int
    weights: np.ndarray


def _tile(weight: np.ndarray, filters: np.ndarray, tiling: PlaneTiling) -> np.ndarray:
    """The weights of 64 filters, int32 (units, 4)."""
    own = weight[filters]
    exponents = exponents_of(own) if tiling.parts > 1 else np.zeros(FILTERS, np.int32)
    own = np.ldexp(own, -exponents[:, None, None, None])
    groups = list(_planes((own != 0).any(axis=0), tiling))
    chunks = np.array_split(np.arange(len(groups)), -(-len(groups) // tiling.groups)) if groups else []
    steps = [_steps(own, [groups[each] for each in chunk], tiling) for chunk in chunks]
    begins = np.cumsum([(0, 0), *((len(chunk), len(some)) for chunk, some in zip(chunks, steps, strict=True))], axis=0)
    every = [each for some in steps for each in some]
    # Where a k-step's planes begin, and how much further the second half of them is.
    places = [one.place | (other.place - one.place) << 16 for one, other in every]
    fragments = np.array([_parts([half.weights for half in each], tiling) for each in every])
    spec = tiling.spec
    first_channel = filters[0] // (spec.k // spec.groups) * (spec.c // spec.groups)
    parts: list[Any] = [
        [len(groups), len(steps), len(every)],
        filters,
        filters * (spec.out_h * spec.out_w),
        factors_of(exponents).view(np.int32),
        np.concatenate([_where(each, first_channel, tiling) for each in groups]) if groups else [],
        begins,
        places,
        fragments.view(np.int32) if every else [],
    ]
    return np.concatenate([_units(each) for each in parts])


def _parts(weights: Sequence[np.ndarray], tiling: PlaneTiling) -> np.ndarray:
    """The weights of a k-step's halves in each part, (parts, 2, filters, 8) as tensor cores read them."""
    whole = np.array(weights)
    return half_parts(whole) if tiling.parts > 1 else whole[None].astype(tiling.spec.dtype)


def _units(values: Sequence[int] | np.ndarray) -> np.ndarray:
    """Numbers as 16-byte units, filled up by zeros."""
    flat = np.asarray(values, np.int32).ravel()
    return np.pad(flat, (0, -len(flat) % 4)).reshape(-1, 4)


def _where(planes: _Planes, first_channel: int, tiling: PlaneTiling) -> np.ndarray:
    """A group's units: where its channels begin, in elements, and how much further its planes are read.

    Where there are fewer than eight, one of them is read in the others' places, no other that might be infinite.
    """
    missing = GROUP - len(planes.channels)
    filled = np.concatenate([planes.channels, np.repeat(planes.channels[-1:], missing)])
    maps = (first_channel + filled) * (tiling.spec.h * tiling.spec.w)
    return np.concatenate([maps, planes.base, [0, 0]]).astype(np.int32)


def _planes(uses: np.ndarray, tiling: PlaneTiling) -> Iterator[_Planes]:
    """Groups of planes, of which filters use the positions `uses` (C, R, S)."""
    by_base: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for r, row in enumerate(tiling.row_shifts):
        for s, column in enumerate(tiling.column_shifts):
            by_base[row.base, column.base].append((r, s))
    for base, taps in by_base.items():
        own: np.ndarray = np.stack([uses[:, r, s] for r, s in taps], axis=1)
        live = np.flatnonzero(own.any(axis=1))
        # Channels that are used by the same taps side by side.
        live = live[np.lexsort(own[live].T)]
        # As many in each: the fewer a group has, the more often all that a place has is too small for float16.
        for channels in np.array_split(live, -(-len(live) // GROUP)) if len(live) else []:
            yield _Planes(channels, base, [tap for i, tap in enumerate(taps) if own[channels, i].any()])


def _steps(own: np.ndarray, groups: Sequence[_Planes], tiling: PlaneTiling) -> list[tuple[_Half, _Half]]:
    """The k-steps of a chunk, of filters' weights `own` (filters, C, R, S)."""
    halves = []
    for number, planes in enumerate(groups):
        for r, s in planes.taps:
            weights = np.zeros((FILTERS, GROUP), np.float32)
            weights[:, : len(planes.channels)] = own[:, planes.channels, r, s]
            halves.append(_Half(number * tiling.staged + tiling.offset(r, s), weights))
    halves.sort(key=lambda half: half.place)
    if len(halves) % 2:
        # Nothing, of what is read anyway.
        halves.append(_Half(halves[-1].place, np.zeros((FILTERS, GROUP), np.float32)))
    return list(zip(halves[::2], halves[1::2], strict=True))
