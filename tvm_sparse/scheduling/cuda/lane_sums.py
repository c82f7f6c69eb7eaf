"""Linear layers on few images: the threads of a warp share a filter, then add their sums up by shuffles.

Such a layer is bound by reading its weights once, so neighbouring threads read neighbouring weights, 16 bytes at a
time; the sums of all images stay in registers. More images go in groups, and each group reads the weights again. More
than a warp a filter would help where there are few filters, but TVM cannot lower such sums of several images.
"""

from collections.abc import Callable, Iterable

from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV
from tvm.tirx.script import builder as T

from tvm_sparse.conv.conv2d import epilogue
from tvm_sparse.conv.dtypes import FLOAT32
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.space import Choose, divisors
from tvm_sparse.scheduling.tir_writing import epilogue_reads, new_buffer
from tvm_sparse.target.gpu import GpuInfo

# Images of a group, whose sums a thread keeps, at most.
IMAGES = 8
# Threads that share a filter, and filters of a block at most.
WARP, FILTERS = 32, 32
# Weights that a thread reads at a time.
WIDE = 4


def images_of(spec: ConvSpec, most: int = IMAGES) -> int:
    """Images of a group: as equal groups as the batch divides into."""
    return -(-spec.n // -(-spec.n // most))


def write_sums(
    spec: ConvSpec,
    images: int,
    arguments: dict[str, tirx.Var],
    reads: Callable[[tirx.Expr, tirx.Var], Iterable],
    products: Callable[[tirx.Expr, tirx.Var, tirx.Var, tirx.Var], None],
) -> None:
    """Write stages ``partial``, ``conv`` and ``out``.

    ``products(group, k, lane, sums)`` adds a thread's share of a filter's products to ``sums``, one for each of the
    `images` of a group; of the arguments and stages it reads ``reads(group, k)``.
    """
    groups = -(-spec.n // images)
    partial = new_buffer("partial", (groups, spec.k, WARP * images), "local")
    with T.grid(groups, spec.k, WARP) as loops, T.sblock("partial"):
        group, k, lane = T.axis.remap("SSS", loops)
        T.reads(*reads(group, k))
        T.writes(partial[group, k, lane * images : lane * images + images])
        sums = new_buffer("sums", (images,), "local")
        for i in range(images):
            T.buffer_store(sums, tirx.const(0.0, FLOAT32), [i])
        products(group, k, lane, sums)
        for i in range(images):
            T.buffer_store(partial, sums[i], [group, k, lane * images + i])
    total = new_buffer("total", (groups, images, spec.k), "local")
    with T.grid(groups, images, spec.k, WARP) as loops, T.sblock("conv"):
        group, i, k, lane = T.axis.remap("SSSR", loops)
        value = partial[group, k, lane * images + i]
        T.reads(value)
        T.writes(total[group, i, k])
        with T.init():
            T.buffer_store(total, tirx.const(0.0, FLOAT32), [group, i, k])
        T.buffer_store(total, total[group, i, k] + value, [group, i, k])
    with T.grid(spec.n, spec.k) as loops, T.sblock("out"):
        n, k = T.axis.remap("SS", loops)
        value, index = total[tirx.floordiv(n, images), tirx.floormod(n, images), k], [n, k, 0, 0]
        T.reads(value, *epilogue_reads(spec, arguments, index))
        T.writes(arguments["y"][n, k, 0, 0])
        T.buffer_store(arguments["y"], epilogue(spec, arguments, value, index), index)


def bind_sums(sch: Schedule, choose: Choose, images: int, gpu: GpuInfo) -> tuple[LoopRV, LoopRV]:
    """Bind the stages of `write_sums` to threads; the loop over thread blocks, and the filters of a block.

    Decision ``filters``: filters of a block, by default as many as leave most multiprocessors a block.
    """
    out, conv, partial = (sch.get_sblock(name) for name in ("out", "conv", "partial"))
    n, k = sch.get_loops(out)
    rows, count = int(sch.get(n).extent), int(sch.get(k).extent)
    filters = divisors(count, FILTERS)
    busy = [each for each in filters if 4 * -(-rows // images) * count // each >= 3 * gpu.multiprocessors]
    filters_block = choose.one_of("filters", filters, max(busy, default=1))
    group, image = sch.split(n, [None, images])
    block, k_inner = sch.split(k, [None, filters_block])
    # Groups that read the same weights run at about the same time, and share them in the level-2 cache.
    sch.reorder(block, group, k_inner, image)
    block = sch.fuse(block, group)
    sch.bind(block, "blockIdx.x")
    sch.bind(k_inner, "threadIdx.y")
    for stage, place in ((conv, image), (partial, k_inner)):
        sch.compute_at(stage, place, preserve_unit_loops=True)
        sch.bind(sch.get_loops(stage)[-1], "threadIdx.x")
    return block, filters_block
