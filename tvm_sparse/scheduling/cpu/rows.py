"""The structure that folded and dense CPU kernels share: a register tile of filters by pixel vectors.

Outermost first::

    parallel over images and blocks of row groups     variant "block": the input block is packed here into a
      for each tile of `filters` output channels        buffer that stays in the level-2 cache; "root": all input is
        for each tile of pixel vectors                   packed first, and tiles of channels come outermost, as they
          registers = 0                                  do for "block" where blocks do not occupy all threads;
          for each k-tile of `channels` input channels   "direct": the input is read as it is
            multiply-adds, straight-line where folded
          store to a scratch tile
        copy the tile to the output with bias, residual and ReLU

The register tile matters most: large enough to hide the latency of the multiply-add, small enough not to spill. Vectors
wider than the machine's (the innermost factor of the vector split) compile several times faster than as many single
ones and run alike; LLVM splits them.
"""

import math
from functools import partial

from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.tirx import Expr

from tvm_sparse.conv.conv2d_rows import RowGroups, conv2d_rows
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.annotations import FOLD
from tvm_sparse.scheduling.cpu.cuts import Threads
from tvm_sparse.scheduling.cpu.fit import SPARSE
from tvm_sparse.scheduling.space import Choose, HandMadeSpace, divisors, nearest
from tvm_sparse.target.cpu_info import CpuInfo

# Taps of a filter, zeros included, whose multiply-adds a block of assembly holds by default.
BLOCK_TAPS = 2048
# Blocks of assembly in one function at most: the time that LLVM takes grows with their square, 22 s for 4,096.
MAX_BLOCKS = 2048
# Default register tiles, the better first: vectors, and how many floats wide each is, in machine vectors. The second
# are those of AVX-512, whose multiply-adds read weights from memory: two vectors of the input, or three, then serve
# eight filters, and one serves sixteen (docs/lab/cpu-dense.md, "How fast are dense convolutions on a CPU?").
TILES, BROADCAST_TILES = ((1, 4), (3, 1), (1, 2), (5, 1), (7, 1)), ((1, 2), (3, 1))
# Lanes of a long vector, and columns of a row that fills few of them.
LONG, SHORT_ROW = 16, 32
# Taps of filters of which sixteen beside each other are faster than eight.
MOST_TAPS = 9
# Blocks of rows are not worth it that take threads so many times as long as their share of the work.
MOST_UNEVEN = 1.9


def layouts(
    spec: ConvSpec, lanes: int, straddling: float = SPARSE.straddling, threads: Threads | None = None
) -> list[RowGroups]:
    """Ways to lay out output rows, most promising first; kernels whose loads straddle lines are taken for dearer.

    So are those that keep some of the `threads` waiting, which pack blocks of rows.
    """
    sharing = threads if threads is not None and threads.packs_by_rows(spec) else None

    def key(layout: RowGroups) -> tuple[float, int, int]:
        uneven = (
            1.0 if sharing is None or layout.reads_input(spec) else sharing.imbalance(spec, layout.rows, packs=True)
        )
        return _cost(spec, layout, straddling) * uneven, layout.rows, layout.row_stride

    return sorted(_layouts(spec, lanes), key=key)


def layout_named(spec: ConvSpec, lanes: int, variant: str) -> tuple[RowGroups, str] | None:
    """The layout, and where the input is packed, of a `RowSpace` called `variant`; None where there is no such one."""
    offered = ((layout, pack) for layout in _layouts(spec, lanes) for pack in packs(spec, layout))
    return next((each for each in offered if variant_of(*each) == variant), None)


def variant_of(layout: RowGroups, pack: str) -> str:
    """The variant of a `RowSpace`."""
    return f"rows{layout.rows}x{layout.row_stride}-{pack}"


def _layouts(spec: ConvSpec, lanes: int) -> set[RowGroups]:
    natural = RowGroups.of(spec, 1, lanes).row_stride
    strides = {natural, -(-natural // lanes) * lanes}
    return {RowGroups.of(spec, rows, lanes, stride) for rows in divisors(spec.out_h) for stride in strides}


def _cost(spec: ConvSpec, layout: RowGroups, straddling: float) -> float:
    """Work per useful pixel: dearer where no register tile divides the vectors or loads straddle lines.

    The two surcharges are estimates: they only choose which layouts the search is offered, and times decide there.
    """
    tileable = layout.vectors <= 8 or any(layout.vectors % d == 0 for d in (2, 3, 5, 7))
    aligned = layout.row_stride % layout.lanes == 0
    return layout.waste(spec) * (1.0 if tileable else 1.5) * (1.0 if aligned else straddling)


def packs(spec: ConvSpec, layout: RowGroups) -> list[str]:
    """Where the input may be packed: nowhere, where the layout reads it as it is."""
    if layout.reads_input(spec):
        return ["direct"]
    return ["block", "root"] if spec.out_h > layout.rows else ["root"]


def store_rows(sch: Schedule, spec: ConvSpec, layout: RowGroups, row: LoopRV, x: LoopRV) -> None:
    """Store a filter's rows, the innermost loops, in whole vectors.

    LLVM makes single floats of a loop that is not longer than a vector: 576x96x1x1 on 14x14 with 90% zeros took 187 us
    instead of 107. Short rows that lie one behind the other among the sums too are one loop, where vectors are those of
    AVX-512: shorter ones fill such rows well (docs/lab/cpu-dense.md).
    """
    stored, floats = x, spec.out_w
    if layout.row_stride == spec.out_w and layout.lanes >= LONG and spec.out_w < SHORT_ROW:
        stored, floats = sch.fuse(row, x), layout.rows * spec.out_w
    if floats <= layout.lanes:
        sch.vectorize(stored)


class RowSpace(HandMadeSpace):
    """The space of one layout, folded or with the weight (K, C / groups, R, S) as an argument, for so many threads.

    `is_assembly` says that multiply-adds of folded kernels are written as assembly (`codegen.cpu`). Of the decision
    ``row_groups``, groups of rows of a task, fewer are taken where threads would end at different times.
    """

    def __init__(
        self, name: str, spec: ConvSpec, layout: RowGroups, pack: str, cpu: CpuInfo, fold: bool, threads: Threads
    ):
        make_func = partial(conv2d_rows, spec, layout, direct=pack == "direct")
        super().__init__(name, variant_of(layout, pack), make_func, fold)
        self.spec, self.layout, self.cpu, self.threads = spec, layout, cpu, threads
        is_uneven = pack == "block" and threads.imbalance(spec, layout.rows, packs=True) > MOST_UNEVEN
        self.pack = "root" if is_uneven else pack
        self.is_assembly = fold and bool(cpu.register_name)

    def apply(self, sch: Schedule, choose: Choose) -> None:
        spec, layout, pack = self.spec, self.layout, self.pack
        conv, out = sch.get_sblock("conv"), sch.get_sblock("out")
        acc = sch.cache_write(conv, 0, "local")
        filters, blocks = divisors(spec.k // spec.groups, 32), divisors(spec.out_h // layout.rows)
        filters_tile = choose.one_of("filters", filters, self._default_filters(filters))
        tiles, packs = spec.k // int(sch.get(filters_tile)), pack == "block"
        rows_outside = packs or self.threads.has_rows_outside(spec, blocks[-1])

        def best(most: int) -> int:
            return self.threads.groups_of_task(spec, layout.rows, most, packs, 1 if rows_outside else tiles)

        rows_block = self.decide_most(choose, "row_groups", blocks, nearest(blocks, 16 / layout.rows), best)

        n, k, y, x = sch.get_loops(out)
        k_outer, k_inner = sch.split(k, [None, filters_tile])
        block, group, row = sch.split(y, [None, rows_block, layout.rows])
        outer = [block, k_outer] if rows_outside else [k_outer, block]
        sch.reorder(n, *outer, group, k_inner, row, x)
        sch.compute_at(acc, outer[-1], preserve_unit_loops=True)
        vector_outer, wide = self._schedule_registers(sch, choose, acc)
        sch.compute_at(conv, vector_outer, preserve_unit_loops=True)
        c_outer = self._schedule_nest(sch, choose, conv, wide)
        if pack == "block":
            sch.compute_at(sch.get_sblock("pack"), block, preserve_unit_loops=True)
        elif pack == "root":
            sch.parallel(sch.fuse(*sch.get_loops(sch.get_sblock("pack"))[:2]))
        sch.parallel(sch.fuse(n, *(outer[:1] if packs else outer)))
        # Last: once a reduction is split in two, loops around it can no longer be made parallel.
        for loop in sch.get_loops(sch.decompose_reduction(conv, c_outer))[-4:-1]:
            sch.unroll(loop)
        store_rows(sch, spec, layout, row, x)

    def _schedule_registers(self, sch: Schedule, choose: Choose, acc: SBlockRV) -> tuple:
        """Tile the store of the accumulators; returns the loop over tiles and the sampled width of vectors."""
        _, k, group, vector, lane = sch.get_loops(acc)[-5:]
        tile = choose.split("vectors", vector, 3, 4, self._default_tile())
        vector_outer, vector, wide = sch.split(vector, tile)
        lane = sch.fuse(wide, lane)
        sch.reorder(group, vector_outer, k, vector, lane)
        sch.vectorize(lane)
        sch.unroll(k)
        sch.unroll(vector)
        return vector_outer, tile[2]

    def _schedule_nest(self, sch: Schedule, choose: Choose, conv: SBlockRV, wide: Expr) -> LoopRV:
        """Order the multiply-adds, input positions outside, filters and vectors inside; returns the k-tile loop."""
        k, group, vector, lane, c, r, s = sch.get_loops(conv)[-7:]
        k_tiles, usual = self._k_tiles()
        c_outer, c_inner = sch.split(c, [None, choose.one_of("channels", k_tiles, usual)])
        vector, inner = sch.split(vector, [None, wide])
        lane = sch.fuse(inner, lane)
        sch.reorder(c_outer, c_inner, r, s, k, group, vector, lane)
        sch.vectorize(lane)
        if self.fold:
            sch.annotate(c_inner, FOLD, 1)
        else:
            sch.unroll(k)
            sch.unroll(vector)
        return c_outer

    @property
    def imbalance(self) -> float:
        """How many times as long its threads take as they do not end together, or pack all first."""
        spec, rows = self.spec, self.layout.rows
        if self.pack in ("block", "direct"):
            return self.threads.imbalance(spec, rows, self.pack == "block")
        tiles = spec.n * spec.k // self._default_filters(divisors(spec.k // spec.groups, 32))
        first = 1 + SPARSE.packed_first if self.threads.count > 1 else 1.0
        return self.threads.imbalance_of_tasks(spec.out_h // rows * tiles) * first

    def _default_tile(self) -> list[int]:
        """Default (outer, tile, wide) split of a group's vectors: 2 to 4 in the register tile, where they divide."""
        vectors = self.layout.vectors
        for tile, wide in BROADCAST_TILES if self.cpu.has_memory_broadcast else TILES:
            if vectors % (tile * wide) == 0:
                return [vectors // (tile * wide), tile, wide]
        return [vectors, 1, 1]

    def _default_filters(self, filters: list[int]) -> int:
        """Filters of the default register tile.

        Where weights are data and have registers of their own, LLVM keeps the vectors of the input in registers too;
        one sum too many, and kernels take 1.5 times as long.
        """
        _, tile, wide = self._default_tile()
        vectors, registers = tile * wide, self.cpu.registers
        if self.cpu.has_memory_broadcast:
            few_taps = self.spec.r * self.spec.s <= MOST_TAPS
            return max(each for each in filters if each <= (16 if vectors == 1 and few_taps else 8))
        if self.fold:
            return nearest(filters, min(8, registers * 3 // 4 / vectors))
        return max(each for each in filters if each <= max(1, min(8, (registers - 1) // vectors - 1)))

    def _k_tiles(self) -> tuple[list[int], int]:
        """Input channels of a k-tile that are offered, and the default.

        Assembly is a block a k-tile, and thousands of blocks in one function take LLVM long.
        """
        channels = self.spec.weight_shape[1]
        if not self.is_assembly:
            tiles = divisors(channels, 256)
            return tiles, nearest(tiles, 32)
        tiles = divisors(channels, 2048)
        return tiles, nearest(tiles, BLOCK_TAPS / (self.spec.r * self.spec.s))

    def obstacle_of(self, sch: Schedule) -> str:
        """Why the accumulators do not fit the vector registers, as spilled ones cost more than a larger tile saves.

        Or why their multiply-adds would not be assembly, without which a kernel takes 20 to 50 times as long to build,
        or would be too many blocks of it.
        """
        *_, c_inner, _, _, k, _, vector, lane = sch.get_loops(sch.get_sblock("conv_update"))
        width = int(sch.get(lane).extent) // self.layout.lanes
        blocks = math.prod(self.spec.weight_shape[:2]) // (int(sch.get(k).extent) * int(sch.get(c_inner).extent))
        if self.is_assembly and blocks > MAX_BLOCKS:
            return f"{blocks} blocks of assembly, at most {MAX_BLOCKS}"
        if self.is_assembly and width & (width - 1):
            return f"{width} vectors side by side, which memory pads; assembly takes 1, 2 or 4"
        accumulators = int(sch.get(k).extent) * int(sch.get(vector).extent) * width
        most = self.cpu.registers
        return "" if accumulators <= most else f"{accumulators} accumulators, at most {most}"
