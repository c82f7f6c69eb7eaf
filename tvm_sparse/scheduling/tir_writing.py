"""What the sparse schedules that keep weights as data share: Escort's format, and writing functions that read it.

Park et al. 2017 and Chen 2018: a convolution is a sparse matrix (K, C R S) in compressed sparse rows whose column
indices are "stretched", that is, replaced by the distance of the tap's input element from the output pixel's in the
padded input. A multiply-add then needs one addition to find its input, whatever the convolution.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as T

from tvm_sparse.conv.dtypes import FLOAT32
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.space import NotApplicable

Shape = tuple[int, ...]


def stretch(weight: np.ndarray, places: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A weight (K, C / groups, R, S) as compressed sparse rows.

    Parameters
    ----------
    places
        (C, R, S), where in the padded input the element that a tap reads lies, relative to the output pixel.

    Returns
    -------
    Values float32 (nnz,), offsets int32 (nnz,), both at least one long, and row pointers int32 (K + 1,).
    """
    k, channels = weight.shape[:2]
    filters, c, r, s = np.nonzero(weight)
    first_channel = filters // (k * channels // places.shape[0]) * channels
    _, rows = by_row(filters, k)
    values, offsets = weight[filters, c, r, s], places[first_channel + c, r, s].astype(np.int32)
    padding = (0, max(0, 1 - values.size))
    return np.pad(values.astype(np.float32), padding), np.pad(offsets, padding), rows


def by_row(rows: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The order in which elements of these `rows` (n,) come row after row, and where each of `count` rows begins then.

    The latter are row pointers, int32 (count + 1,).
    """
    pointers = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=count))]).astype(np.int32)
    return np.argsort(rows, kind="stable"), pointers


def require_one_pixel(spec: ConvSpec) -> None:
    """Raise NotApplicable for a convolution that no image is one row of a matrix for."""
    if any(spec.padding):
        raise NotApplicable(f"padding {spec.padding}, and only 0 is served; it is for linear layers")
    if spec.out_h * spec.out_w > 1:
        raise NotApplicable(f"{spec.out_h * spec.out_w} pixels an output, at most 1; it is for linear layers")


def places_of_pixel(spec: ConvSpec) -> np.ndarray:
    """Where the taps (C, R, S) of the only pixel lie in an image (C, H, W) without padding, for `stretch`."""
    c, r, s = np.ogrid[: spec.c, : spec.r, : spec.s]
    return (c * spec.h + r * spec.dilation[0]) * spec.w + s * spec.dilation[1]


def csr_function(
    spec: ConvSpec,
    nnz: int,
    body: Callable[[dict[str, tirx.Var]], None],
    offsets: str = "int32",
    rows: int = 0,
) -> tirx.PrimFunc:
    """A function with arguments x, values, offsets, rows, [bias], [residual], y, by name in `body`'s argument.

    `offsets` is the type of the offsets, `rows` the number of row pointers, by default K + 1.
    """
    weight = {
        "values": ((max(nnz, 1),), FLOAT32),
        "offsets": ((max(nnz, 1),), offsets),
        "rows": ((rows or spec.k + 1,), "int32"),
    }
    return written_function(spec, weight, body)


def written_function(
    spec: ConvSpec,
    weight: Mapping[str, tuple[Shape, str]],
    body: Callable[[dict[str, tirx.Var]], None],
    output_shape: Shape | None = None,
) -> tirx.PrimFunc:
    """A function with arguments x, those of `weight`, [bias], [residual], y, by name in `body`'s argument.

    `weight` may have another x; y is of `output_shape`, by default that of the convolution.
    """
    shapes = {"x": (spec.input_shape, spec.dtype), **weight}
    if spec.bias:
        shapes["bias"] = ((spec.k,), spec.dtype)
    if spec.residual:
        shapes["residual"] = (spec.output_shape, spec.dtype)
    shapes["y"] = (output_shape or spec.output_shape, spec.dtype)
    return function_of(shapes, body)


def function_of(shapes: Mapping[str, tuple[Shape, str]], body: Callable[[dict[str, tirx.Var]], None]) -> tirx.PrimFunc:
    """A function whose arguments have these shapes and types, by name in `body`'s argument."""
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name("main")
        arguments = {name: T.arg(name, T.buffer(*shape, layout=None)) for name, shape in shapes.items()}
        with T.sblock("root"):
            body(arguments)
    return builder.get().with_attr("tirx.noalias", True)


def new_buffer(name: str, shape: Shape, scope: str = "global", dtype: str = FLOAT32) -> tirx.Var:
    """A buffer of the block that is being written."""
    buffer = T.sblock_alloc_buffer(shape, dtype, scope=scope)
    IRBuilder.name(name, buffer)
    return buffer


def whole(buffer: tirx.Var, *first: tirx.Expr) -> object:
    """The region of `buffer` with `first` as its first indices, for ``T.reads``."""
    rest = tuple(slice(0, int(extent)) for extent in buffer.shape[len(first) :])
    return buffer[first + rest]


def epilogue_reads(spec: ConvSpec, arguments: dict[str, tirx.Var], index: Sequence) -> list:
    """What `epilogue` reads for output elements `index` = (n, k, y, x), for ``T.reads``."""
    reads = [arguments["bias"][index[1]]] if spec.bias else []
    return reads + ([arguments["residual"][tuple(index)]] if spec.residual else [])


def divided(number: tirx.Expr, by: int) -> tuple[tirx.Expr, tirx.Expr]:
    """Quotient and remainder."""
    return tirx.floordiv(number, by), tirx.floormod(number, by)


def every_second(x: tirx.Var, first: tuple, count: int) -> tirx.Expr:
    """The vector of `count` pixels, one of two of a row, that begins with `first`; LLVM would load lane by lane.

    The second of the two vectors that are read ends with the last pixel: nothing is read behind an image.
    """
    *row, column = first
    loads = [tirx.BufferLoad(x, [*row, tirx.Ramp(column + begin, 1, count)]) for begin in (0, count - 1)]
    lanes = [lane if lane < count else lane + 1 for lane in range(0, 2 * count, 2)]
    return tirx.Shuffle(loads, lanes)


def either(condition: tirx.Expr, then: Callable[[], None], otherwise: Callable[[], None] | None = None) -> None:
    """Write `then` under a condition, and `otherwise`."""
    with T.If(condition):
        with T.Then():
            then()
        if otherwise is not None:
            with T.Else():
                otherwise()
