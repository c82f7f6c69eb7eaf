"""The kernel that writes a convolution's input anew for tensor cores (`conv.staged_input`).

Where an image of many channels is turned from NCHW to NHWC, a tile of it lies in shared memory between. Otherwise each
thread reads what it writes: the few channels of a pixel that neighbouring threads write lie in rows that they read
together.
"""

from tvm import tirx
from tvm.s_tir import Schedule
from tvm.tirx.script import builder as T

from tvm_sparse.conv.staged_input import StagedInput, rounded_up
from tvm_sparse.scheduling.tir_writing import new_buffer, whole

# A tile that is transposed: channels, pixels, and rows of 32 threads.
CHANNELS, PIXELS, ROWS = 32, 32, 8
_THREADS = 256


def is_transposed(staged: StagedInput) -> bool:
    """Whether tiles of the input are turned in shared memory."""
    return staged.layout == "nchw" and staged.values >= CHANNELS


def write_staged(x: tirx.Var, staged: StagedInput) -> tirx.Var:
    """The blocks that write `x` anew, into a buffer that they make."""
    spec, (n, h, w, c) = staged.spec, staged.shape
    written = new_buffer("staged_x", (n, h, w, c), dtype=spec.dtype)
    # What a pixel's channels are filled up with is written as further values.
    count, lanes = n * h * w, c
    tile, zero = None, tirx.const(0.0, spec.dtype)
    if is_transposed(staged):
        count, lanes = rounded_up(count, PIXELS), rounded_up(lanes, CHANNELS)
        tile = new_buffer("tile", (lanes, count), "shared", spec.dtype)
        with T.grid(lanes, count) as loops, T.sblock("stage"):
            value, pixel = T.axis.remap("SS", loops)
            T.reads(whole(x))
            T.writes(tile[value, pixel])
            element, is_inside = _element(x, staged, pixel, value)
            T.buffer_store(tile, tirx.if_then_else(is_inside, element, zero), [value, pixel])
    with T.grid(count, lanes) as loops, T.sblock("write"):
        pixel, value = T.axis.remap("SS", loops)
        T.reads(whole(x) if tile is None else tile[value, pixel])
        T.writes(whole(written))
        if tile is None:
            element, is_inside = _element(x, staged, pixel, value)
            element = tirx.if_then_else(is_inside, element, zero)
        else:
            element = tile[value, pixel]
        with T.If(tirx.all(pixel < n * h * w, value < c)), T.Then():
            T.buffer_store(written, element, [*_place(staged, pixel), value])
    return written


def schedule_staged(func: tirx.PrimFunc, staged: StagedInput) -> tirx.PrimFunc:
    """`func`, which has the blocks of `write_staged`, with these bound to threads."""
    sch = Schedule(func, debug_mask="none")
    write = sch.get_sblock("write")
    pixel, value = sch.get_loops(write)
    if not is_transposed(staged):
        block, thread = sch.split(sch.fuse(pixel, value), [None, _THREADS])
        sch.bind(block, "blockIdx.x")
        sch.bind(thread, "threadIdx.x")
        return sch.mod["main"]
    stage = sch.get_sblock("stage")
    tile, place = sch.split(pixel, [None, PIXELS])
    group, lane = sch.split(value, [None, CHANNELS])
    repeat, row = sch.split(place, [None, ROWS])
    sch.reorder(tile, group, repeat, row, lane)
    threads = {"blockIdx.x": tile, "blockIdx.y": group, "threadIdx.y": row, "threadIdx.x": lane}
    for thread, loop in threads.items():
        sch.bind(loop, thread)
    sch.compute_at(stage, group, preserve_unit_loops=True)
    value, place = sch.get_loops(stage)[-2:]
    _, row = sch.split(value, [None, ROWS])
    _, lane = sch.split(place, [None, CHANNELS])
    sch.bind(row, "threadIdx.y")
    sch.bind(lane, "threadIdx.x")
    # Lanes write pixels and read channels: a row that is one longer keeps both apart in shared memory's banks.
    sch.storage_align(stage, 0, axis=0, factor=CHANNELS, offset=1)
    return sch.mod["main"]


def _element(x: tirx.Var, staged: StagedInput, pixel: tirx.Expr, value: tirx.Expr) -> tuple[tirx.Expr, tirx.Expr]:
    """The input's element that is a value of a pixel, and whether there is one; else it is zero."""
    spec, columns = staged.spec, staged.phases[1]
    top, left = spec.padding[:2] if staged.pads else (0, 0)
    phase, c = tirx.floordiv(value, spec.c), tirx.floormod(value, spec.c)
    n, row, column = _place(staged, pixel)
    h = row * staged.step[0] + tirx.floordiv(phase, columns) - top
    w = column * staged.step[1] + tirx.floormod(phase, columns) - left
    inside = [n < spec.n, value < staged.values, h >= 0, h < spec.h, w >= 0, w < spec.w]
    if spec.volumes is not None:
        n, c, place = spec.volumes.source(n, c, spec.c // spec.volumes.taps)
        inside += [place >= 0, place < spec.volumes.size]
    return x[n, c, h, w] if staged.layout == "nchw" else x[n, h, w, c], tirx.all(*inside)


def _place(staged: StagedInput, pixel: tirx.Expr) -> tuple[tirx.Expr, tirx.Expr, tirx.Expr]:
    """Image, row and column of a pixel of what is written."""
    _, h, w, _ = staged.shape
    return tirx.floordiv(pixel, h * w), tirx.floormod(tirx.floordiv(pixel, w), h), tirx.floormod(pixel, w)
