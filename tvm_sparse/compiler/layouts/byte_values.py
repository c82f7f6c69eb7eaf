"""What tensors of a quantised network are as functions of tensors of bytes: tables of a code, or sums and products."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
from tvm import relax, tirx
from tvm.ir import Call, Expr, GenericConst, Var

from tvm_sparse.conv.codes import CODES, FOUR
from tvm_sparse.frontend.passes.relax_graph import Graph, is_call, static_shape
from tvm_sparse.scheduling.cpu.byte_map import OPERATORS
from tvm_sparse.scheduling.cpu.byte_vectors import LANES

# Operators that a table may be of, on float32.
_POINTWISE: Mapping[str, Callable[..., np.ndarray]] = {
    "relax.add": np.add,
    "relax.clip": np.clip,
    "relax.divide": np.divide,
    "relax.exp": np.exp,
    "relax.maximum": np.maximum,
    "relax.minimum": np.minimum,
    "relax.multiply": np.multiply,
    "relax.nn.leakyrelu": lambda x, alpha: np.where(x < 0, x * alpha, x),
    "relax.nn.relu": lambda x: np.maximum(x, 0),
    "relax.round": np.rint,
    "relax.sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "relax.subtract": np.subtract,
    "relax.tanh": np.tanh,
}
# Of what is no table: operators of what is read twice are written twice.
MOST_OPERATORS = 32


class Source(NamedTuple):
    """Where a tensor of bytes is read: from a four of channels on, and how many times enlarged; 0: its only pixel."""

    var: Var
    first: int = 0
    zoom: int = 1


@dataclass(frozen=True)
class Known:
    """A function of a code: its values, float32 (256,), by the sources of which it is one, the nearest first."""

    values: Mapping[Source, np.ndarray]

    @property
    def is_in_place(self) -> bool:
        """Whether no source is enlarged."""
        return all(source.zoom == 1 for source in self.values)

    def at(self, move: Callable[[Source], Source]) -> "Known":
        """The same where its sources are moved."""
        return Known({move(source): values for source, values in self.values.items()})


@dataclass(frozen=True)
class Mixed:
    """What an operator of `byte_map` makes of several functions of codes."""

    operator: str
    operands: "tuple[Known | Mixed | np.float32, ...]"

    @cached_property
    def size(self) -> int:
        """Operators, each as often as it is computed."""
        return 1 + sum(each.size for each in self.operands if isinstance(each, Mixed))


@dataclass(frozen=True)
class Joined:
    """Fours of channels one behind the other, or pixels of all: how many, and what they are."""

    parts: tuple[tuple[int, Known | Mixed], ...]
    along_pixels: bool = False


Value = Known | Mixed | Joined | np.float32


def image_shape(value: Expr) -> tuple[int, ...] | None:
    """The shape of a tensor as (N, C, H, W), of which (N, C, L) has L rows; None of others."""
    shape = static_shape(value)
    return shape if shape is None or len(shape) == 4 else (*shape, 1) if len(shape) == 3 else None


def codes(least: int) -> np.ndarray:
    """All codes of a tensor, float32 (256,)."""
    return np.arange(CODES, dtype=np.float32) + np.float32(least)


@dataclass
class ByteValues:
    """What tensors of `graph` are, as far as they depend on those tensors of bytes that are `known`."""

    graph: Graph
    known: dict[Var, Value | None] = field(default_factory=dict)

    def of(self, value: Expr) -> Value | None:
        """None where it depends on others, or by operators that are not done on bytes."""
        if isinstance(value, GenericConst):
            array = value.value.numpy()
            return np.float32(array.reshape(())) if array.size == 1 and array.dtype == np.float32 else None
        if not isinstance(value, Var):
            # A bound of a clip.
            return np.float32(value.value)
        if value not in self.known:
            self.known[value] = self._computed(value, self.graph.definitions.get(value))
        return self.known[value]

    def _computed(self, var: Var, call: Expr | None) -> Value | None:
        shape = image_shape(var)
        if shape is None:
            return None
        if isinstance(call, relax.TupleGetItem):
            return self._split(call, shape)
        if not isinstance(call, Call):
            return None
        name = getattr(call.op, "name", "")
        if name == "relax.concat":
            return self._joined(call)
        if name == "relax.strided_slice":
            return self._sliced(call, shape)
        if name == "relax.reshape":
            return self._reshaped(call, shape)
        if name == "relax.image.resize2d":
            return self._enlarged(call, shape)
        if name not in _POINTWISE:
            return None
        found = [self._aligned(each, shape) for each in call.args]
        operands = [each for each in found if each is not None]
        rest = [np.float32(call.attrs.alpha)] if is_call(call, "relax.nn.leakyrelu") else []
        return _applied(name, [*operands, *rest]) if len(operands) == len(found) else None

    def _aligned(self, operand: Expr, shape: tuple[int, ...]) -> Value | None:
        """An operand of what has a `shape`: its only pixel may be for all."""
        value, own = self.of(operand), image_shape(operand) if isinstance(operand, Var) else None
        if own is None or own == shape:
            return value
        if own != (*shape[:2], 1, 1) or not isinstance(value, Known):
            return None
        return value.at(lambda source: source._replace(zoom=0))

    def _joined(self, call: Call) -> Value | None:
        axis, fields = call.attrs.axis, call.args[0].fields if isinstance(call.args[0], relax.Tuple) else []
        along_pixels = axis == 2
        parts = list[tuple[int, Known | Mixed]]()
        for each in fields:
            value, shape = self.of(each), image_shape(each) if isinstance(each, Var) else None
            if shape is None or not isinstance(value, Known | Mixed) or (shape[1] % FOUR and not along_pixels):
                return None
            parts.append((shape[2] * shape[3] if along_pixels else shape[1] // FOUR, value))
        is_flat = not along_pixels or all(isinstance(part, Known) and part.is_in_place for _, part in parts)
        return Joined(tuple(parts), along_pixels) if parts and axis in (1, 2) and is_flat else None

    def _reshaped(self, call: Call, shape: tuple[int, ...]) -> Value | None:
        """The same pixels in other rows."""
        value, before = self.of(call.args[0]), image_shape(call.args[0])
        is_same = before is not None and before[:2] == shape[:2]
        return value if is_same and isinstance(value, Known) and value.is_in_place else None

    def _sliced(self, call: Call, shape: tuple[int, ...]) -> Value | None:
        """Some of its channels."""
        axes, begins, _, *strides = map(_integers, call.args[1:])
        is_plain = axes == [1] and begins is not None and strides in ([], [[1]])
        return self._from(call.args[0], begins[0], shape) if begins is not None and is_plain else None

    def _split(self, item: relax.TupleGetItem, shape: tuple[int, ...]) -> Value | None:
        """One of several parts of its channels."""
        call = self.graph.definitions.get(item.tuple_value)
        if call is None or not is_call(call, "relax.split") or call.attrs.axis != 1:
            return None
        sections, index = call.attrs.indices_or_sections, int(item.index)
        is_even = isinstance(sections, int | tirx.IntImm)
        return self._from(call.args[0], index * shape[1] if is_even else int([0, *sections][index]), shape)

    def _from(self, whole: Expr, channel: int, shape: tuple[int, ...]) -> Value | None:
        """The channels of `whole` from one on, if they are fours."""
        value, before = self.of(whole), image_shape(whole)
        is_inside = before is not None and 0 <= channel <= before[1] - shape[1]
        if not isinstance(value, Known) or not is_inside or channel % FOUR or shape[1] % FOUR:
            return None
        return value.at(lambda source: source._replace(first=source.first + channel // FOUR))

    def _enlarged(self, call: Call, shape: tuple[int, ...]) -> Value | None:
        """Each pixel several times, if these fit vectors."""
        before, value, attrs = static_shape(call.args[0]), self.of(call.args[0]), call.attrs
        kind = (attrs.method, attrs.coordinate_transformation_mode, attrs.rounding_method, attrs.layout)
        if kind != ("nearest_neighbor", "asymmetric", "floor", "NCHW") or before is None:
            return None
        zoom = shape[3] // before[3]
        is_whole = shape[2:] == (zoom * before[2], zoom * before[3]) and zoom in (2, 4, 8)
        if not is_whole or not isinstance(value, Known) or not value.is_in_place or min(LANES, shape[3]) % zoom:
            return None
        return value.at(lambda source: source._replace(zoom=zoom))


def _integers(numbers: Expr) -> list[int] | None:
    """Constants of a tuple."""
    fields = numbers.fields if isinstance(numbers, relax.Tuple) else []
    found = [int(each.value) for each in fields if isinstance(each, tirx.IntImm)]
    return found if found and len(found) == len(fields) else None


def _applied(name: str, operands: list[Value]) -> Value | None:
    """What an operator makes of `operands`."""
    joined = [each for each in operands if isinstance(each, Joined)]
    if joined:
        numbers = sum(isinstance(each, np.float32) for each in operands)
        return _of_parts(name, operands, joined[0]) if len(operands) == numbers + 1 else None
    functions = [each for each in operands if isinstance(each, Known)]
    others = [each for each in operands if isinstance(each, Mixed)]
    if functions and not others:
        shared = [each for each in functions[0].values if all(each in other.values for other in functions)]
        if shared:
            return Known({source: _values(name, operands, source) for source in shared})
    if name == "relax.divide" and isinstance(operands[1], np.float32) and operands[1] != 0:
        name, operands = "relax.multiply", [operands[0], np.float32(1) / operands[1]]
    mixed = Mixed(name, tuple(each for each in operands if not isinstance(each, Joined)))
    return mixed if name in OPERATORS and (functions or others) and mixed.size <= MOST_OPERATORS else None


def _of_parts(name: str, operands: list[Value], joined: Joined) -> Joined | None:
    found = list[tuple[int, Known | Mixed]]()
    for fours, part in joined.parts:
        value = _applied(name, [part if each is joined else each for each in operands])
        if not isinstance(value, Known | Mixed):
            return None
        found.append((fours, value))
    return Joined(tuple(found), joined.along_pixels)


def _values(name: str, operands: list[Value], source: Source) -> np.ndarray:
    """Of a function of the codes of a `source`."""
    found = [each.values[source] if isinstance(each, Known) else each for each in operands]
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        return np.asarray(_POINTWISE[name](*found), np.float32)
