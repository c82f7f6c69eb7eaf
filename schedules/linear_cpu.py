"""Linear layers and other convolutions to one pixel on CPUs: a sparse matrix, weights as data, times the input's rows.

`csr_cpu` makes vectors of a map's pixels, and here each map has one. So variant ``single`` computes an image at a time
in scalars, with sums that do not wait for each other: gathers into vectors are no faster (docs/lab/linear.md). Where
there are several images, variant ``images`` turns the input around and makes vectors of them; input channels come in
tiles, of which the input lies in the level-1 cache while filters pass by, and in which 8 bits hold an offset.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
from tvm import tirx
from tvm.s_tir import Schedule
from tvm.target import Target
from tvm.tirx.script import builder as T

from tvm_sparse.conv.conv2d import epilogue, widened
from tvm_sparse.conv.dtypes import FLOAT32
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import MAX_ELEMENTS, ConvSpec
from tvm_sparse.scheduling.family import KernelFamily
from tvm_sparse.scheduling.space import Choose, HandMadeSpace, NotApplicable, Space, divisors, nearest
from tvm_sparse.scheduling.tir_writing import (
    by_row,
    csr_function,
    epilogue_reads,
    new_buffer,
    places_of_pixel,
    require_one_pixel,
    stretch,
    whole,
)
from tvm_sparse.target.cpu_info import CpuInfo
from tvm_sparse.target.resolve import thread_count

NAME = "linear_cpu"
# Sums of a filter that are added up side by side: enough to hide the latency of the multiply-add.
SUMS = 8
# Up to so many inputs 16 bits hold an offset: three quarters of the memory traffic of 32.
SHORT = 1 << 16
# Inputs of a tile of `ImagesSpace`.
TILE = 1 << 8
# Vectors of images whose sums a filter keeps in registers at most, and images in them.
VECTORS, MOST_IMAGES = 8, 128


def spaces(spec: ConvSpec, pattern: SparsityPattern, target: Target) -> list[Space]:
    """Search spaces for `spec`, most promising first.

    NotApplicable where an output has more than one pixel, or there is padding.
    """
    require_one_pixel(spec)
    # What is packed is rounded up to whole tiles.
    longest = max(_inputs(spec) + TILE, spec.k) * (spec.n + MOST_IMAGES)
    if longest > MAX_ELEMENTS:
        raise NotApplicable(f"a buffer of {longest} floats exceeds 32-bit indices")
    # A block of filters is one task of a thread.
    share = max(1, spec.k // (2 * thread_count(target)))
    single: list[Space] = [SingleSpace(spec, pattern.nnz, min(share, 64))]
    if spec.n == 1:
        return single
    widths = [width for width in (4, 8, 16) if width <= CpuInfo.of(target).lanes]
    lanes = next((width for width in widths if width >= spec.n), widths[-1])
    vectors = -(-spec.n // lanes)
    # As equal tiles as the images divide into.
    tiles = dict.fromkeys(-(-vectors // -(-vectors // most)) for most in (VECTORS // 2, VECTORS))
    images: list[Space] = [ImagesSpace(spec, pattern.nnz, min(share, 256), lanes, tile) for tile in tiles]
    return [*images, *single] if spec.n > 2 else [*single, *images]


def _inputs(spec: ConvSpec) -> int:
    """Floats of an image."""
    return spec.c * spec.h * spec.w


class SingleSpace(HandMadeSpace):
    """One image at a time, in scalars."""

    def __init__(self, spec: ConvSpec, nnz: int, filters: int):
        self.spec, self.filters = spec, filters
        self.offsets = "uint16" if _inputs(spec) <= SHORT else "int32"
        make_func = partial(csr_function, spec, nnz, self._write, self.offsets)
        super().__init__(NAME, "single", make_func, fold=False)

    def constants(self, weight: np.ndarray) -> tuple[np.ndarray, ...]:
        values, offsets, rows = stretch(weight, places_of_pixel(self.spec))
        return values, offsets.astype(self.offsets), rows

    def apply(self, sch: Schedule, choose: Choose) -> None:
        filters = divisors(self.spec.k, 256)
        n, k = sch.get_loops(sch.get_sblock("conv"))
        k_outer, k_inner = sch.split(k, [None, choose.one_of("filters", filters, nearest(filters, self.filters))])
        sch.reorder(k_outer, n, k_inner)
        sch.parallel(k_outer)

    def _write(self, arguments: dict[str, tirx.Var]) -> None:
        spec = self.spec
        x, values, offsets, rows, y = (arguments[name] for name in ("x", "values", "offsets", "rows", "y"))

        def product(n: tirx.Expr, e: tirx.Expr) -> tirx.Expr:
            # An image lies in memory in the order of its places: the indices flatten to the same address.
            return values[e] * widened(x[n, 0, 0, offsets[e].astype("int32")])

        with T.grid(spec.n, spec.k) as loops, T.sblock("conv"):
            n, k = T.axis.remap("SS", loops)
            extra = epilogue_reads(spec, arguments, [n, k, 0, 0])
            T.reads(whole(x, n), whole(values), whole(offsets), rows[k : k + 2], *extra)
            T.writes(y[n, k, 0, 0])
            sums = new_buffer("sums", (SUMS,), "local")
            for i in range(SUMS):
                T.buffer_store(sums, tirx.const(0.0, FLOAT32), [i])
            steps = tirx.floordiv(rows[k + 1] - rows[k], SUMS)
            with T.serial(0, steps) as step:
                for i in range(SUMS):
                    T.buffer_store(sums, sums[i] + product(n, rows[k] + step * SUMS + i), [i])
            # The rest is not filled up: a zero times an infinite input would be NaN.
            with T.serial(rows[k] + steps * SUMS, rows[k + 1]) as e:
                T.buffer_store(sums, sums[0] + product(n, e), [0])
            half = [sums[i] + sums[i + SUMS // 2] for i in range(SUMS // 2)]
            total = (half[0] + half[1]) + (half[2] + half[3])
            T.buffer_store(y, epilogue(spec, arguments, total, (n, k, 0, 0)), [n, k, 0, 0])


class ImagesSpace(HandMadeSpace):
    """`vectors` vectors of `lanes` images at a time."""

    def __init__(self, spec: ConvSpec, nnz: int, filters: int, lanes: int, vectors: int):
        self.spec, self.filters, self.lanes, self.vectors = spec, filters, lanes, vectors
        self.tiles = -(-_inputs(spec) // TILE)
        make_func = partial(csr_function, spec, nnz, self._write, "uint8", self.tiles * spec.k + 1)
        super().__init__(NAME, f"images{lanes}x{vectors}", make_func, fold=False)

    def constants(self, weight: np.ndarray) -> tuple[np.ndarray, ...]:
        """The rows of one tile of inputs after the other."""
        values, offsets, rows = stretch(weight, places_of_pixel(self.spec))
        filters = np.repeat(np.arange(self.spec.k), np.diff(rows))
        order, tiled = by_row(offsets[: filters.size] // TILE * self.spec.k + filters, self.tiles * self.spec.k)
        # One element stays where there is no non-zero.
        order = order if order.size else np.zeros(1, int)
        return values[order], (offsets[order] % TILE).astype(np.uint8), tiled

    def apply(self, sch: Schedule, choose: Choose) -> None:
        filters = divisors(self.spec.k, 1024)
        filters_block = choose.one_of("filters", filters, nearest(filters, self.filters))
        place, n = sch.get_loops(sch.get_sblock("pack"))
        outer, inner = sch.split(place, [None, self.lanes])
        sch.reorder(outer, n, inner)
        sch.parallel(outer)
        n, k = sch.get_loops(sch.get_sblock("out"))
        k_outer, k_inner = sch.split(k, [None, filters_block])
        sch.reorder(k_outer, n, k_inner)
        sch.compute_at(sch.get_sblock("conv"), k_outer, preserve_unit_loops=True)
        sch.parallel(k_outer)

    def _write(self, arguments: dict[str, tirx.Var]) -> None:
        spec, x, y = self.spec, arguments["x"], arguments["y"]
        wide = self.lanes * self.vectors
        width, places = -(-spec.n // wide) * wide, self.tiles * TILE
        packed, sums = new_buffer("packed", (places, width)), new_buffer("sums", (spec.k, width))
        with T.grid(places, width) as loops, T.sblock("pack"):
            place, n = T.axis.remap("SS", loops)
            T.reads(whole(x))
            T.writes(packed[place, n])
            inside = tirx.all(place < _inputs(spec), n < spec.n)
            zero = tirx.const(0.0, FLOAT32)
            T.buffer_store(packed, tirx.if_then_else(inside, widened(x[n, 0, 0, place]), zero), [place, n])
        with T.grid(width // wide, self.tiles, spec.k) as loops, T.sblock("conv"):
            self._write_conv(arguments, packed, sums, T.axis.remap("SRS", loops))
        with T.grid(spec.n, spec.k) as loops, T.sblock("out"):
            n, k = T.axis.remap("SS", loops)
            T.reads(sums[k, n], *epilogue_reads(spec, arguments, [n, k, 0, 0]))
            T.writes(y[n, k, 0, 0])
            T.buffer_store(y, epilogue(spec, arguments, sums[k, n], (n, k, 0, 0)), [n, k, 0, 0])

    def _write_conv(self, arguments: dict[str, tirx.Var], packed: tirx.Var, sums: tirx.Var, index: list) -> None:
        """Add one tile of inputs to the sums of one filter and one tile of images."""
        values, offsets, rows = (arguments[name] for name in ("values", "offsets", "rows"))
        images, tile, k = index
        wide, row = self.lanes * self.vectors, tile * self.spec.k + k
        first = images * wide
        T.reads(whole(packed), whole(values), whole(offsets), rows[row : row + 2])
        T.writes(sums[k, first : first + wide])
        with T.init(), T.vectorized(wide) as lane:
            T.buffer_store(sums, tirx.const(0.0, FLOAT32), [k, first + lane])
        acc = new_buffer("acc", (wide,), "local")

        def each_vector(write: Callable[[tirx.Expr], None]) -> None:
            for i in range(self.vectors):
                with T.vectorized(self.lanes) as lane:
                    write(i * self.lanes + lane)

        each_vector(lambda at: T.buffer_store(acc, sums[k, first + at], [at]))
        with T.serial(rows[row], rows[row + 1]) as e:
            place = tile * TILE + offsets[e].astype("int32")
            each_vector(lambda at: T.buffer_store(acc, acc[at] + values[e] * packed[place, first + at], [at]))
        each_vector(lambda at: T.buffer_store(sums, acc[at], [k, first + at]))


FAMILY = KernelFamily(NAME, "llvm", spaces, is_predicted=True)
