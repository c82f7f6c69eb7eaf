"""What computes tensors of bytes of others, pixel by pixel: functions of a code as tables, and sums and products.

A tensor consists of pieces, such as those that are concatenated: some fours of its channels each, or some pixels.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

from tvm import tirx
from tvm.target import Target
from tvm.target.codegen import target_has_features
from tvm.tirx.script import builder as T

from tvm_sparse.conv.byte_form import fours_shape
from tvm_sparse.conv.codes import CODES, FOUR
from tvm_sparse.conv.dtypes import FLOAT32
from tvm_sparse.scheduling.cpu.byte_copies import by_plane
from tvm_sparse.scheduling.cpu.byte_vectors import INT32, LANES, in_four, of_all, out_of_four, pixels_at, vector_type
from tvm_sparse.scheduling.tir_writing import either

Shape = tuple[int, ...]
Write = Callable[["Piece", int], None]
# Bytes of a vector; an instruction (VBMI) looks 64 bytes up in two.
_VECTOR = FOUR * LANES
_BYTES, _LOOK_UP = f"int8x{_VECTOR}", "llvm.x86.avx512.vpermi2var.qi.512"
# How operators compute.
OPERATORS = {
    "relax.add": lambda x, y: x + y,
    "relax.clip": lambda x, least, most: tirx.max(tirx.min(x, most), least),
    "relax.maximum": tirx.max,
    "relax.minimum": tirx.min,
    "relax.multiply": lambda x, y: x * y,
    # A difference is a zero of as many lanes.
    "relax.nn.relu": lambda x: tirx.max(x, x - x),
    "relax.round": lambda x: tirx.call_llvm_pure_intrin(x.ty, "llvm.rint", x),
    "relax.subtract": lambda x, y: x - y,
}


@dataclass(frozen=True)
class Place:
    """Bytes of an argument, from a four of channels on; a pixel is `zoom` by `zoom` here, or all where `zoom` is 0."""

    argument: int
    first: int = 0
    zoom: int = 1


@dataclass(frozen=True)
class Looked:
    """Bytes as they are, or as a table makes them."""

    place: Place
    table: int | None = None


@dataclass(frozen=True)
class Scaled:
    """``scale * (byte + least)``, float32."""

    place: Place
    least: int
    scale: float


@dataclass(frozen=True)
class Computed:
    """What an operator of `OPERATORS` makes of others and of numbers, float32."""

    operator: str
    operands: "tuple[Scaled | Computed | float, ...]"


@dataclass(frozen=True)
class Piece:
    """So many fours of channels, or pixels of all; what is computed are codes, less `least`."""

    size: int
    value: Looked | Computed
    least: int = 0


def byte_map(
    shape: Shape,
    pieces: Sequence[Piece],
    sources: Sequence[Shape],
    tables: int,
    target: Target,
    along_pixels: bool = False,
) -> tirx.PrimFunc:
    """The function from the bytes of `sources` (N, C, H, W) and `tables`, int8 (256,), to those of `shape`."""
    *_, height, width = shape
    is_flat = all(place.zoom == 1 for piece in pieces for place in _places(piece.value))
    # The rows of an image touch each other.
    rows, columns = (1, height * width) if is_flat else (height, width)

    def write_four(arguments: dict[str, tirx.Var], image: tirx.Expr, four: tirx.Expr) -> None:
        y, inputs = arguments["y"], [each for name, each in arguments.items() if name != "y"]

        def write(piece: Piece, first: int, to: int = 0, columns: int = columns) -> None:
            lanes = min(LANES, columns)
            with T.serial(rows) as row, T.serial(-(-columns // lanes)) as vector:
                column = tirx.min(vector * lanes, columns - lanes)
                reader = _Reader(inputs, (image, four - first, row, column), lanes, tables, target)
                T.buffer_store(y, reader.bytes_of(piece), [image, four, row, pixels_at(to + column, lanes)])

        if not along_pixels:
            _write_pieces(pieces, four, write)
            return
        for piece, end in zip(pieces, accumulate(each.size for each in pieces), strict=True):
            write(piece, 0, end - piece.size, piece.size)

    arguments = {f"x{index}": (fours_shape(each), INT32) for index, each in enumerate(sources)}
    arguments |= {f"table{index}": ((CODES,), "int8") for index in range(tables)}
    return by_plane("map", {**arguments, "y": (fours_shape(shape), INT32)}, fours_shape(shape), write_four)


def _write_pieces(pieces: Sequence[Piece], four: tirx.Expr, write: Write, first: int = 0) -> None:
    """`write` the one that has a `four`; `first` is that of the first."""
    piece, *rest = pieces
    if not rest:
        write(piece, first)
        return
    end = first + piece.size
    either(four < end, partial(write, piece, first), partial(_write_pieces, rest, four, write, end))


def _places(value: Looked | Scaled | Computed | float) -> list[Place]:
    if isinstance(value, Computed):
        return [place for each in value.operands for place in _places(each)]
    return [value.place] if isinstance(value, Looked | Scaled) else []


@dataclass(frozen=True)
class _Reader:
    """Reads a vector of `lanes` pixels from `at` = (image, four, row, column) on."""

    inputs: Sequence[tirx.Var]
    at: tuple[tirx.Expr, ...]
    lanes: int
    tables: int
    target: Target

    def bytes_of(self, piece: Piece) -> tirx.Expr:
        """int32 of four bytes each."""
        if isinstance(piece.value, Computed):
            value = piece.value
            return in_four(lambda channel: self._float(value, channel), piece.least, self.lanes)
        bytes_ = self._loaded(piece.value.place)
        if piece.value.table is None:
            return bytes_
        table = self.inputs[len(self.inputs) - self.tables + piece.value.table]
        bytes_ = tirx.reinterpret(f"uint8x{FOUR * self.lanes}", bytes_)
        if self.lanes == LANES and target_has_features("avx512vbmi", self.target):
            found = _looked_up(table, tirx.reinterpret(_BYTES, bytes_))
        else:
            found = tirx.BufferLoad(table, [tirx.Cast(f"{INT32}x{FOUR * self.lanes}", bytes_)])
        return tirx.reinterpret(vector_type(INT32, self.lanes), found)

    def _float(self, value: Scaled | Computed | float, channel: int) -> tirx.Expr:
        if isinstance(value, Computed):
            return OPERATORS[value.operator](*(self._float(each, channel) for each in value.operands))
        if not isinstance(value, Scaled):
            return of_all(value, FLOAT32, self.lanes)
        code = out_of_four(self._loaded(value.place), channel, value.least, self.lanes)
        return code if value.scale == 1 else code * of_all(value.scale, FLOAT32, self.lanes)

    def _loaded(self, place: Place) -> tirx.Expr:
        (image, four, row, column), x = self.at, self.inputs[place.argument]
        if place.zoom == 0:
            pixel = x[image, four + place.first, 0, 0]
            return pixel if self.lanes == 1 else tirx.Broadcast(pixel, self.lanes)
        if place.zoom == 1:
            return tirx.BufferLoad(x, [image, four + place.first, row, pixels_at(column, self.lanes)])
        zoom, count = place.zoom, self.lanes // place.zoom
        row, column = tirx.floordiv(row, zoom), tirx.floordiv(column, zoom)
        pixels = tirx.BufferLoad(x, [image, four + place.first, row, pixels_at(column, count)])
        if count == 1:
            return tirx.Broadcast(pixels, self.lanes)
        # TVM takes no more lanes out of vectors than these have.
        return tirx.Shuffle([pixels] * zoom, [lane // zoom for lane in range(self.lanes)])


def _looked_up(table: tirx.Var, bytes_: tirx.Expr) -> tirx.Expr:
    quarters = [tirx.BufferLoad(table, [tirx.Ramp(first, 1, _VECTOR)]) for first in range(0, CODES, _VECTOR)]
    low, high = (
        tirx.call_llvm_pure_intrin(_BYTES, _LOOK_UP, quarters[half], bytes_, quarters[half + 1]) for half in (0, 2)
    )
    return tirx.Select(bytes_ < tirx.Broadcast(tirx.const(0, "int8"), _VECTOR), high, low)
