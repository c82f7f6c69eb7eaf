"""What lies between kernels of eight-bit integers and can be done on bytes: max pools, and what `byte_map` computes.

Such as SiLU: codes are scaled, multiplied by their rounded sigmoid, scaled and rounded again. Of 256 codes that is a
table, whatever the operators are.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from tvm import tirx
from tvm.ir import Call, Expr, Var
from tvm.relax import TupleGetItem
from tvm.target import Target

from tvm_sparse.compiler.layouts.byte_values import ByteValues, Joined, Known, Mixed, Source, Value, codes, image_shape
from tvm_sparse.conv.byte_form import fours_shape
from tvm_sparse.conv.codes import CODES, FOUR
from tvm_sparse.frontend.passes.folding.fold_rounding import is_whole_pool
from tvm_sparse.frontend.passes.relax_graph import Graph, channel_vector, is_call, static_shape
from tvm_sparse.scheduling.cpu.byte_map import Computed, Looked, Piece, Place, Scaled, byte_map
from tvm_sparse.scheduling.cpu.byte_pool import max_pool, mean

# Integers below are float32 numbers.
EXACT_FLOATS = 1 << 24


@dataclass(frozen=True)
class ByteStep:
    """How a tensor of bytes, less `least`, is computed of others: `sources` and `constants` are `func`'s arguments."""

    func: tirx.PrimFunc
    sources: tuple[Var, ...]
    least: int
    constants: tuple[np.ndarray, ...] = ()


def byte_steps(
    graph: Graph, written: Mapping[Var, int], read: Mapping[Expr, int], target: Target
) -> dict[Var, ByteStep]:
    """The steps that follow tensors of bytes which kernels have `written` or `read`, each with its least code."""
    least, found, values = dict(written), dict[Var, ByteStep](), ByteValues(graph)
    values.known |= {var: Known({Source(var): codes(least[var])}) for var in written}
    for var, definition in graph.definitions.items():
        if var in written:
            continue
        step, shape = None, image_shape(var)
        # Of others the last four has channels that nobody wrote.
        if isinstance(definition, Call | TupleGetItem) and shape is not None and shape[1] % FOUR == 0:
            step = (
                _pool(definition, least)
                or _mean(graph, definition, least)
                or _mapped(graph, var, values, least, target)
            )
        if step is not None and read.get(var, step.least) == step.least:
            found[var] = step
        elif var not in read:
            continue
        least[var] = found[var].least if var in found else read[var]
        before = values.known.get(var)
        others = before.values if var in found and isinstance(before, Known) else {}
        values.known[var] = Known({Source(var): codes(least[var]), **others})
    return found


def _pool(value: Call, least: Mapping[Var, int]) -> ByteStep | None:
    if not is_whole_pool(value) or value.args[0] not in least:
        return None
    attrs, source = value.attrs, value.args[0]
    pairs = ((int(each[0]), int(each[1])) for each in (attrs.pool_size, attrs.strides, attrs.padding))
    func = max_pool(static_shape(source) or (), static_shape(value) or (), *pairs)
    return ByteStep(func, (source,), least[source])


def _mean(graph: Graph, clip: Call, least: Mapping[Var, int]) -> ByteStep | None:
    """The step for the rounded mean of each channel, times a number."""
    bounds = code_bounds(clip)
    value = graph.definitions.get(clip.args[0]) if bounds is not None else None
    scaled = graph.definitions.get(value.args[0]) if value is not None and is_call(value, "relax.round") else None
    if bounds is None or scaled is None or not any(is_call(scaled, f"relax.{each}") for each in ("multiply", "divide")):
        return None
    number, mean_of = channel_vector(scaled.args[1], (1, 1, 1, 1)), graph.definitions.get(scaled.args[0])
    if number is None or mean_of is None or not is_call(mean_of, "relax.mean") or mean_of.args[0] not in least:
        return None
    source, axes = mean_of.args[0], [int(each) for each in mean_of.attrs.axis or ()]
    shape = static_shape(source) or ()
    if axes != [2, 3] or not mean_of.attrs.keepdims or math.prod(shape[2:]) * CODES >= EXACT_FLOATS:
        return None
    scale = float(number[0]) if is_call(scaled, "relax.multiply") else 1 / float(number[0])
    return ByteStep(mean(shape, least[source], scale, bounds), (source,), bounds[0])


def _mapped(graph: Graph, var: Var, values: ByteValues, known: Mapping[Var, int], target: Target) -> ByteStep | None:
    """The step for codes that are rounded and clipped, or for some of those of a tensor of bytes as they are."""
    value, bounds = values.of(var), code_bounds(graph.definitions[var])
    if bounds is not None and is_call(graph.definitions.get(graph.definitions[var].args[0]), "relax.round"):
        least = bounds[0]
    elif isinstance(value, Known) and bounds is None:
        source, found = next(iter(value.values.items()))
        least = known[source.var]
        if not np.array_equal(found, codes(least)):
            return None
    else:
        return None
    return None if value is None else _Writer(known, least).step(var, value, target)


@dataclass
class _Writer:
    """Says what computes a tensor with the `least` code; `known` has the least of those of bytes."""

    known: Mapping[Var, int]
    least: int
    places: list[Source] = field(default_factory=list)
    sources: list[Var] = field(default_factory=list)
    tables: list[np.ndarray] = field(default_factory=list)

    def step(self, var: Var, value: Value, target: Target) -> ByteStep | None:
        """None where a table has values that are no numbers, or sums are of more than multiples of codes."""
        shape, along_pixels = image_shape(var) or (), isinstance(value, Joined) and value.along_pixels
        parts = value.parts if isinstance(value, Joined) else ((fours_shape(shape)[1], value),)
        found = [self._piece(*each) for each in parts]
        pieces = [each for each in found if each is not None]
        if len(pieces) < len(found) or not self._is_in_rows(shape):
            return None
        shapes = [image_shape(each) or () for each in self.sources]
        func = byte_map(shape, pieces, shapes, len(self.tables), target, along_pixels)
        return ByteStep(func, tuple(self.sources), self.least, tuple(self.tables))

    def _is_in_rows(self, shape: tuple[int, ...]) -> bool:
        """Whether rows of sources are those of `shape`, unless all pixels are one row."""
        if all(each.zoom == 1 for each in self.places):
            return True
        sizes = ((each.zoom, (image_shape(each.var) or ())[2:]) for each in self.places if each.zoom)
        return all((zoom * height, zoom * width) == shape[2:] for zoom, (height, width) in sizes)

    def _piece(self, size: int, value: Value) -> Piece | None:
        if isinstance(value, Known):
            # The furthest: those between need not be computed.
            source, found = list(value.values.items())[-1]
            if not np.isfinite(found).all():
                return None
            table = (found - self.least).astype(np.uint8)
            is_same = bool((table == np.arange(CODES)).all())
            if not is_same:
                self.tables.append(table.view(np.int8))
            return Piece(size, Looked(self._place(source), None if is_same else len(self.tables) - 1))
        computed = self._computed(value)
        return Piece(size, computed, self.least) if isinstance(computed, Computed) else None

    def _computed(self, value: Value) -> Scaled | Computed | float | None:
        if isinstance(value, np.float32):
            return float(value)
        if isinstance(value, Known):
            source, found = next(iter(value.values.items()))
            own = codes(self.known[source.var])
            # Of the code 1, or -1.
            scale = found[np.abs(own) == 1][0] / own[np.abs(own) == 1][0]
            is_multiple = np.array_equal(found, own * scale)
            return Scaled(self._place(source), self.known[source.var], float(scale)) if is_multiple else None
        if not isinstance(value, Mixed):
            return None
        computed = [self._computed(each) for each in value.operands]
        operands = tuple(each for each in computed if each is not None)
        return Computed(value.operator, operands) if len(operands) == len(computed) else None

    def _place(self, source: Source) -> Place:
        self.places.append(source)
        if not any(each.same_as(source.var) for each in self.sources):
            self.sources.append(source.var)
        index = next(i for i, each in enumerate(self.sources) if each.same_as(source.var))
        return Place(index, source.first, source.zoom)


def code_bounds(step: Expr) -> tuple[int, int] | None:
    """The bounds of a clip to codes."""
    if not is_call(step, "relax.clip"):
        return None
    least, greatest = (float(each.value) for each in step.args[1:])
    is_whole = least.is_integer() and greatest.is_integer()
    return (int(least), int(greatest)) if is_whole and least <= greatest < least + CODES else None
