"""Tensors of codes in float32 as bytes, of four channels in an int32, and back."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tvm import tirx
from tvm.tirx.script import builder as T

from tvm_sparse.conv.byte_form import ByteForm, fours_shape
from tvm_sparse.conv.codes import FOUR
from tvm_sparse.conv.dtypes import FLOAT32
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.cpu.byte_vectors import INT32, LANES, in_four, of_all, out_of_four, pixels_at, vector_type
from tvm_sparse.scheduling.tir_writing import divided, every_second, function_of, whole, written_function

Shape = tuple[int, ...]
Write = Callable[[dict[str, tirx.Var]], None]
# Of a function: scheduled, and opaque for Relax's fusion.
SCHEDULED = {"tirx.is_scheduled": True, "op_pattern": 8}


def by_plane(
    name: str, shapes: Mapping[str, tuple[Shape, str]], fours: Shape, write: Callable[..., None]
) -> tirx.PrimFunc:
    """The function with arguments of such `shapes`, y last, of whose `fours` of channels threads take some each.

    ``write(arguments, image, four)`` writes those of an image.
    """

    def body(arguments: dict[str, tirx.Var]) -> None:
        with T.parallel(fours[0] * fours[1]) as plane, T.sblock(name):
            T.reads(*(whole(each) for key, each in arguments.items() if key != "y"))
            T.writes(whole(arguments["y"]))
            write(arguments, *divided(plane, fours[1]))

    return function_of(shapes, body).with_attr(SCHEDULED)


def layer_function(
    spec: ConvSpec, form: ByteForm | None, weight: Mapping[str, tuple[Shape, str]], channels: int, write: Write
) -> tirx.PrimFunc:
    """A layer's function with arguments x, those of `weight`, [bias], [residual], y; no bias with stages.

    These have numbers for so many `channels`.
    """
    if form is None:
        return written_function(spec, weight, write)
    shapes = {"x": (fours_shape(spec.input_shape), INT32), **weight}
    if not form.stages:
        return written_function(spec, shapes, write)
    shapes |= dict.fromkeys(form.numbers(spec.k), ((channels,), FLOAT32))
    of_output = (fours_shape(spec.output_shape), INT32)
    shapes |= {"residual": of_output} if form.residual_least is not None else {}
    return function_of({**shapes, "y": of_output}, write)


def _channel_of(four: tirx.Expr, channel: int, channels: int) -> tirx.Expr:
    """Of a four; behind the last channel that one again, as weights are zeros there."""
    found = four * FOUR + channel
    return found if channels % FOUR == 0 else tirx.min(found, channels - 1)


@dataclass(frozen=True)
class Rounding:
    """How floats become codes: ``clip(round(x / scale), least, most)``, or multiplied by `scale` if not `divides`."""

    scale: float
    least: int
    most: int
    divides: bool = True

    def of(self, x: tirx.Expr, lanes: int) -> tirx.Expr:
        """The codes of a vector of floats."""
        kind = vector_type(FLOAT32, lanes)
        scale = of_all(self.scale, FLOAT32, lanes)
        rounded = tirx.call_llvm_pure_intrin(kind, "llvm.rint", x / scale if self.divides else x * scale)
        return tirx.max(tirx.min(rounded, of_all(self.most, FLOAT32, lanes)), of_all(self.least, FLOAT32, lanes))


def to_bytes(shape: Shape, least: int, rounding: Rounding | None = None) -> tirx.PrimFunc:
    """The function from codes (N, C, H, W), float32, or from floats that are to be codes, to bytes."""

    def write(x: tirx.Var, y: tirx.Var, image: tirx.Expr, four: tirx.Expr, pixels: tirx.Expr, lanes: int) -> None:
        def code_of(channel: tirx.Expr) -> tirx.Expr:
            code = tirx.BufferLoad(x, [image, channel, 0, pixels])
            return code if rounding is None else rounding.of(code, lanes)

        T.buffer_store(y, _in_four(code_of, four, shape[1], least, lanes), [image, four, 0, pixels])

    return _copying((shape, FLOAT32), (fours_shape(shape), INT32), fours_shape(shape), write)


def pixels_of_four(x: tirx.Var, place: tuple, count: int, stride: int, floats: ConvSpec | None) -> tirx.Expr:
    """`count` pixels from `place` = (image, four, row, column) on, `stride` apart, as int32 of four channels.

    `x` has codes in float32 where it is the input of `floats`, else it has bytes.
    """
    image, four, row, column = place

    def pixels_of(channel: tirx.Expr) -> tirx.Expr:
        if count == 1:
            return x[image, channel, row, column]
        if stride == 2:
            return every_second(x, (image, channel, row, column), count)
        return tirx.BufferLoad(x, [image, channel, row, tirx.Ramp(column, stride, count)])

    return pixels_of(four) if floats is None else _in_four(pixels_of, four, floats.c, floats.least, count)


def from_bytes(shape: Shape, least: int) -> tirx.PrimFunc:
    """The function from bytes to codes (N, C, H, W), float32."""

    def write(x: tirx.Var, y: tirx.Var, image: tirx.Expr, four: tirx.Expr, pixels: tirx.Expr, lanes: int) -> None:
        bytes_ = tirx.BufferLoad(x, [image, four, 0, pixels])
        for channel in range(FOUR):
            code = out_of_four(bytes_, channel, least, lanes)
            T.buffer_store(y, code, [image, four * FOUR + channel, 0, pixels])

    return _copying((fours_shape(shape), INT32), (shape, FLOAT32), fours_shape(shape), write)


def _in_four(
    code_of: Callable[[tirx.Expr], tirx.Expr], four: tirx.Expr, channels: int, least: int, lanes: int
) -> tirx.Expr:
    """Codes of a four of `channels`, float32, less `least`, as the bytes of int32."""
    return in_four(lambda index: code_of(_channel_of(four, index, channels)), least, lanes)


def _copying(x: tuple[Shape, str], y: tuple[Shape, str], fours: Shape, write: Callable[..., None]) -> tirx.PrimFunc:
    """`write` vectors of the pixels of four channels, of which the last overlaps the one before."""
    pixels = fours[2] * fours[3]
    lanes = min(LANES, pixels)

    def copy(arguments: dict[str, tirx.Var], image: tirx.Expr, four: tirx.Expr) -> None:
        with T.serial(-(-pixels // lanes)) as vector:
            first = tirx.min(vector * lanes, pixels - lanes)
            # The rows of an image touch each other: the indices flatten to the same address.
            write(arguments["x"], arguments["y"], image, four, pixels_at(first, lanes), lanes)

    return by_plane("copy", {"x": x, "y": y}, fours, copy)
