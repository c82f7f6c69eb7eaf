"""The kernel that writes a convolution's input anew for tensor cores (`conv.staged_input`).

Where an image of many channels is turned from NCHW to NHWC, a tile of it lies in shared memory between. Otherwise a
block writes a row, and a thread has one value of several pixels of that: neighbouring threads write neighbours, and
what a value is of is found out once.
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
    return staged.layout != "nhwc" and staged.spec.c >= CHANNELS


def write_staged(x: tirx.Var, staged: StagedInput) -> tirx.Var:
    """The blocks that write `x` anew, into a buffer that they make."""
    written = new_buffer("staged_x", staged.shape, dtype=staged.spec.dtype)
    (_write_turned if is_transposed(staged) else _write_rows)(x, written, staged)
    return written


def _write_rows(x: tirx.Var, written: tirx.Var, staged: StagedInput) -> None:
    n, h, w, c = staged.shape
    with T.grid(n * h, w, c) as loops, T.sblock("write"):
        row, column, value = T.axis.remap("SSS", loops)
        place = (tirx.floordiv(row, h), tirx.floormod(row, h), column)
        at = (*place, value)
        T.reads(whole(x))
        T.writes(written[at])
        T.buffer_store(written, _element(x, staged, place, value), list(at))


def _write_turned(x: tirx.Var, written: tirx.Var, staged: StagedInput) -> None:
    n, h, w, c = staged.shape
    # What a pixel's channels are filled up with is written as further values.
    count, lanes = rounded_up(n * h * w, PIXELS), rounded_up(c, CHANNELS)
    tile = new_buffer("tile", (lanes, count), "shared", staged.spec.dtype)
    with T.grid(lanes, count) as loops, T.sblock("stage"):
        value, pixel = T.axis.remap("SS", loops)
        T.reads(whole(x))
        T.writes(tile[value, pixel])
        T.buffer_store(tile, _element(x, staged, _place(staged, pixel), value), [value, pixel])
    with T.grid(count, lanes) as loops, T.sblock("write"):
        pixel, value = T.axis.remap("SS", loops)
        T.reads(tile[value, pixel])
        T.writes(whole(written))
        with T.If(tirx.all(pixel < n * h * w, value < c)), T.Then():
            T.buffer_store(written, tile[value, pixel], [*_place(staged, pixel), value])


def schedule_staged(func: tirx.PrimFunc, staged: StagedInput) -> tirx.PrimFunc:
    """`func`, which has the blocks of `write_staged`, with these bound to threads."""
    sch = Schedule(func, debug_mask="none")
    write = sch.get_sblock("write")
    if not is_transposed(staged):
        _, _, w, c = staged.shape
        row, column, value = sch.get_loops(write)
        more, lane = sch.split(value, [None, min(c, _THREADS)])
        turn, place = sch.split(column, [None, min(w, max(1, _THREADS // c))])
        # Unrolled, 14 turns took 122 us instead of 72, eight films of r3d_18 on an H200.
        sch.reorder(row, more, turn, place, lane)
        for thread, loop in {"blockIdx.x": row, "threadIdx.y": place, "threadIdx.x": lane}.items():
            sch.bind(loop, thread)
        return sch.mod["main"]
    pixel, value = sch.get_loops(write)
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


def _element(x: tirx.Var, staged: StagedInput, place: tuple[tirx.Expr, ...], value: tirx.Expr) -> tirx.Expr:
    """The input's element that is a value of the pixel at a place, or zero where there is none."""
    spec, columns = staged.spec, staged.phases[1]
    top, left = spec.padding[:2] if staged.pads else (0, 0)
    phase, c = tirx.floordiv(value, spec.c), tirx.floormod(value, spec.c)
    n, row, column = place
    h = row * staged.step[0] + tirx.floordiv(phase, columns) - top
    w = column * staged.step[1] + tirx.floormod(phase, columns) - left
    inside = [n < spec.n, value < staged.values, h >= 0, h < spec.h, w >= 0, w < spec.w]
    at: tuple[tirx.Expr, ...] = (n, c, h, w) if staged.layout == "nchw" else (n, h, w, c)
    if (volumes := spec.volumes) is not None:
        image, c, depth = volumes.source(n, c, spec.c // volumes.taps)
        inside += [depth >= 0, depth < volumes.size]
        films = (tirx.floordiv(n, volumes.outputs), c, depth, h, w)
        at = {"nchw": (image, c, h, w), "nhwc": (image, h, w, c), "ncdhw": films}[staged.layout]
    element = x[at]
    return tirx.if_then_else(tirx.all(*inside), element, tirx.const(0.0, spec.dtype))


def _place(staged: StagedInput, pixel: tirx.Expr) -> tuple[tirx.Expr, tirx.Expr, tirx.Expr]:
    """Image, row and column of a pixel of what is written."""
    _, h, w, _ = staged.shape
    return tirx.floordiv(pixel, h * w), tirx.floormod(tirx.floordiv(pixel, w), h), tirx.floormod(pixel, w)
