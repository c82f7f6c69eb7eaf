"""Linear layers on few images: the threads of a warp share a filter, then add their sums up by shuffles.

Such a layer is bound by reading its weights once, so neighbouring threads read neighbouring weights, 16 bytes at a
time; the sums of all images stay in registers. More than a warp a filter would help where there are few filters, but
TVM cannot lower such sums of several images.
"""

from collections.abc import Callable, Iterable

from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV
from tvm.tirx.script import builder as T

from tvm_sparse.conv.conv2d import epilogue
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.csr import epilogue_reads, new_buffer
from tvm_sparse.scheduling.space import Choose, divisors
from tvm_sparse.target.gpu import GpuInfo

# Images whose sums a thread keeps; with more, a layer is bound by arithmetic.
MAX_IMAGES = 8
# Threads that share a filter, and filters of a block at most.
WARP, FILTERS = 32, 32
# Weights that a thread reads at a time.
WIDE = 4

Body = Callable[[tirx.Var, tirx.Var, tirx.Var], None]


def write_sums(
    spec: ConvSpec, arguments: dict[str, tirx.Var], reads: Callable[[tirx.Var], Iterable], products: Body
) -> None:
    """Write stages ``partial``, ``conv`` and ``out``.

    ``products(k, lane, sums)`` adds a thread's share of a filter's products to ``sums``, one for each image; of the
    arguments and stages it reads ``reads(k)``.
    """
    partial = new_buffer("partial", (spec.k, WARP * spec.n), "local")
    with T.grid(spec.k, WARP) as loops, T.sblock("partial"):
        k, lane = T.axis.remap("SS", loops)
        T.reads(*reads(k))
        T.writes(partial[k, lane * spec.n : lane * spec.n + spec.n])
        sums = new_buffer("sums", (spec.n,), "local")
        for n in range(spec.n):
            T.buffer_store(sums, tirx.const(0.0, spec.dtype), [n])
        products(k, lane, sums)
        for n in range(spec.n):
            T.buffer_store(partial, sums[n], [k, lane * spec.n + n])
    total = new_buffer("total", (spec.n, spec.k), "local")
    with T.grid(spec.n, spec.k, WARP) as loops, T.sblock("conv"):
        n, k, lane = T.axis.remap("SSR", loops)
        T.reads(partial[k, lane * spec.n + n])
        T.writes(total[n, k])
        with T.init():
            T.buffer_store(total, tirx.const(0.0, spec.dtype), [n, k])
        T.buffer_store(total, total[n, k] + partial[k, lane * spec.n + n], [n, k])
    with T.grid(spec.n, spec.k) as loops, T.sblock("out"):
        n, k = T.axis.remap("SS", loops)
        index = [n, k, 0, 0]
        T.reads(total[n, k], *epilogue_reads(spec, arguments, index))
        T.writes(arguments["y"][n, k, 0, 0])
        T.buffer_store(arguments["y"], epilogue(spec, arguments, total[n, k], index), index)


def bind_sums(sch: Schedule, choose: Choose, gpu: GpuInfo) -> tuple[LoopRV, LoopRV]:
    """Bind the stages of `write_sums` to threads; the loop over thread blocks, and the filters of a block.

    Decision ``filters``: filters of a block, by default as many as leave most multiprocessors a block.
    """
    out, conv, partial = (sch.get_sblock(name) for name in ("out", "conv", "partial"))
    n, k = sch.get_loops(out)
    count = int(sch.get(k).extent)
    filters = divisors(count, FILTERS)
    busy = [each for each in filters if 4 * count // each >= 3 * gpu.multiprocessors]
    filters_block = choose.one_of("filters", filters, max(busy, default=1))
    block, k_inner = sch.split(k, [None, filters_block])
    sch.reorder(block, k_inner, n)
    sch.bind(block, "blockIdx.x")
    sch.bind(k_inner, "threadIdx.y")
    for stage, place in ((conv, n), (partial, k_inner)):
        sch.compute_at(stage, place, preserve_unit_loops=True)
        sch.bind(sch.get_loops(stage)[-1], "threadIdx.x")
    return block, filters_block
