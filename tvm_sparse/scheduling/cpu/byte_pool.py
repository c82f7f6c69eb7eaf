"""Max pools and means of bytes, of four channels in an int32."""

from functools import reduce

from tvm import tirx
from tvm.tirx.script import builder as T

from tvm_sparse.conv.byte_form import fours_shape
from tvm_sparse.conv.codes import FOUR
from tvm_sparse.conv.dtypes import FLOAT32
from tvm_sparse.scheduling.cpu.byte_copies import Rounding, by_plane
from tvm_sparse.scheduling.cpu.byte_vectors import INT32, LANES, of_all, pixels_at, vector_type
from tvm_sparse.scheduling.tir_writing import every_second, new_buffer

Pair = tuple[int, int]


def max_pool(
    shape: tuple[int, ...], of_output: tuple[int, ...], window: Pair, stride: Pair, before: Pair
) -> tirx.PrimFunc:
    """The function from the bytes of (N, C, H, W) to those of `of_output`.

    Each window has pixels of the input; the first begins `before` it, above and to the left.
    """
    (*_, height, width), (*_, out_h, out_w) = shape, of_output
    # Codes of columns outside are the least.
    row_floats = max((out_w - 1) * stride[1] + window[1], before[1] + width) + LANES

    def write(arguments: dict[str, tirx.Var], image: tirx.Expr, four: tirx.Expr) -> None:
        x, y = arguments["x"], arguments["y"]
        largest = new_buffer("largest", (row_floats // LANES * LANES,), dtype=INT32)
        with T.serial(row_floats // LANES) as vector:
            zeros = tirx.Broadcast(tirx.const(0, INT32), LANES)
            T.buffer_store(largest, zeros, [tirx.Ramp(vector * LANES, 1, LANES)])
        with T.serial(out_h) as row:
            first = row * stride[0] - before[0]
            rows = [tirx.max(0, tirx.min(first + r, height - 1)) for r in range(window[0])]
            lanes = min(LANES, width)
            with T.serial(-(-width // lanes)) as vector:
                at = tirx.min(vector * lanes, width - lanes)
                found = _largest([x[image, four, each, pixels_at(at, lanes)] for each in rows], lanes)
                T.buffer_store(largest, found, [pixels_at(before[1] + at, lanes)])
            lanes = min(LANES, out_w)
            with T.serial(-(-out_w // lanes)) as vector:
                at = tirx.min(vector * lanes, out_w - lanes)
                taps = [at * stride[1] + s for s in range(window[1])]
                if stride[1] == 2 and lanes > 1:
                    pixels = [every_second(largest, (each,), lanes) for each in taps]
                else:
                    pixels = [largest[pixels_at(each, lanes, stride[1])] for each in taps]
                T.buffer_store(y, _largest(pixels, lanes), [image, four, row, pixels_at(at, lanes)])

    shapes = {"x": (fours_shape(shape), INT32), "y": (fours_shape(of_output), INT32)}
    return by_plane("pool", shapes, fours_shape(shape), write)


def mean(shape: tuple[int, ...], least: int, scale: float, bounds: Pair) -> tirx.PrimFunc:
    """The function from the bytes of (N, C, H, W), less `least`, to those of (N, C, 1, 1), less the first of `bounds`.

    They are ``clip(round(scale * mean), *bounds)``.
    """
    images, fours, height, width = fours_shape(shape)
    pixels = height * width

    def write(arguments: dict[str, tirx.Var], image: tirx.Expr, four: tirx.Expr) -> None:
        x, y = arguments["x"], arguments["y"]
        sums, at = new_buffer("sums", (FOUR,), "local", INT32), [tirx.Ramp(0, 1, FOUR)]
        T.buffer_store(sums, of_all(least * pixels, INT32, FOUR), at)
        with T.serial(pixels) as pixel:
            # The rows of an image touch each other: the index flattens to the same address.
            codes = tirx.reinterpret(f"uint8x{FOUR}", x[image, four, 0, pixel])
            T.buffer_store(sums, sums[at[0]] + tirx.Cast(f"{INT32}x{FOUR}", codes), at)
        means = tirx.Cast(vector_type(FLOAT32, FOUR), sums[at[0]]) / of_all(pixels, FLOAT32, FOUR)
        found = Rounding(scale, *bounds, divides=False).of(means, FOUR)
        bytes_ = tirx.Cast(f"uint8x{FOUR}", tirx.Cast(f"{INT32}x{FOUR}", found) - of_all(bounds[0], INT32, FOUR))
        T.buffer_store(y, tirx.reinterpret(INT32, bytes_), [image, four, 0, 0])

    shapes = {"x": (fours_shape(shape), INT32), "y": ((images, fours, 1, 1), INT32)}
    return by_plane("mean", shapes, fours_shape(shape), write)


def _largest(pixels: list[tirx.Expr], lanes: int) -> tirx.Expr:
    """The largest bytes of each channel."""
    channels = [tirx.reinterpret(f"uint8x{FOUR * lanes}", each) for each in pixels]
    return tirx.reinterpret(vector_type(INT32, lanes), reduce(tirx.max, channels))
