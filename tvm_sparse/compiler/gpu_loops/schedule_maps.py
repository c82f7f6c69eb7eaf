"""Schedule a GPU model's maps, several values a thread: additions, casts, concatenations, what is computed one by one.

TVM's own schedule takes a thread for each value, which spends more instructions on where the value lies than on moving
it. In half precision a concatenation takes 4 times as long as its bytes (an H200).
"""

import math

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Call, Expr
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.sym import Analyzer
from tvm.tirx import IndexMap, IntImm, Var

from tvm_sparse.codegen.cpu.hoisted_conditions import CHOICE
from tvm_sparse.codegen.tir.tir_builder import substituted
from tvm_sparse.compiler.rewriting.unscheduled import (
    UNKNOWN,
    calls_functions,
    extents,
    interleaving,
    scheduling_pass,
    shares_axes,
    spread,
    uses,
    vector_length,
)

COMPARISONS = (tirx.LT, tirx.LE, tirx.GT, tirx.GE)


@scheduling_pass("schedule_maps")
def schedule_maps(sch: s_tir.Schedule, blocks: list[SBlockRV]) -> s_tir.Schedule | None:
    """A map whose vectors lie side by side in all its tensors; None where it is none."""
    if not blocks:
        return None
    *before, last = blocks
    for each in before:
        sch.compute_inline(each)
    if not _is_map(sch, last):
        return None
    axes, length = _vector(sch, last)
    if length == 1:
        return _interleaved(sch, last)
    if calls_functions(sch.get(last).body):
        return _one_by_one(sch, last, length)
    if axes == 1:
        sch, loops, lane = _split_last(sch, last, length)
    else:
        loops = sch.get_loops(last)
        outer, lane = sch.split(sch.fuse(*loops[len(loops) - axes :]), [None, length])
        loops = [*loops[: len(loops) - axes], outer]
    spread(sch, loops)
    sch.vectorize(lane)
    return sch


def _interleaved(sch: s_tir.Schedule, block: SBlockRV) -> s_tir.Schedule | None:
    """A map whose neighbours are of several channels, as a transposed convolution leaves them; None where it is none.

    A thread reads those of a vector one by one, each from a place that is known but for the vector's, and writes them
    together: one value a thread took 2.4 times as long as its bytes (U-Net on an H200).
    """
    computed, stride = sch.get(block), interleaving(sch, block)
    bits = tvm.DataType(computed.writes[0].source.dtype).bits
    length = vector_length(bits, extents(sch, sch.get_loops(block))[-1]) if stride > 1 else 1
    if stride == 1 or length % stride:
        return None
    _written_at_once(sch, block, length)
    return sch


def _one_by_one(sch: s_tir.Schedule, block: SBlockRV, length: int) -> s_tir.Schedule | None:
    """A map that calls functions, which TVM does value by value: what it reads and writes are vectors of `length`.

    None where none is along its last axis alone, or where it is read here and there. With a value a thread too little
    is on its way from memory at a time: `x * sigmoid(x)` of 154 MB took twice as long as their bytes (an H200).
    """
    computed, length = sch.get(block), math.gcd(length, extents(sch, sch.get_loops(block))[-1])
    if length == 1 or any(axis.extent != 1 for each in computed.reads for axis in each.region):
        return None
    last = computed.iter_vars[-1].var
    read = [at for at, each in enumerate(computed.reads) if each.region and uses([each.region[-1].min], [last])]
    vectors = [sch.cache_read(block, at, "local") for at in read]
    thread = _written_at_once(sch, block, length)
    for vector in vectors:
        sch.compute_at(vector, thread)
        sch.vectorize(sch.get_loops(vector)[-1])
    return sch


def _written_at_once(sch: s_tir.Schedule, block: SBlockRV, length: int) -> LoopRV:
    """The loop over threads of a map that computes `length` values of its last axis one by one and stores a vector."""
    vector = sch.cache_write(block, 0, "local")
    *loops, last = sch.get_loops(vector)
    outer, lane = sch.split(last, [None, length])
    thread = spread(sch, [*loops, outer])
    sch.vectorize(lane)
    sch.compute_at(block, thread)
    sch.unroll(sch.get_loops(block)[-1])
    return thread


def _split_last(sch: s_tir.Schedule, block: SBlockRV, length: int) -> tuple[s_tir.Schedule, list[LoopRV], LoopRV]:
    """A schedule of the same map with vectors of the last axis as an axis of their own; its loops, lanes last."""
    count = len(sch.get_loops(block))
    apart = IndexMap.from_func(lambda *at: (*at[:-1], at[-1] // length, at[-1] % length), count)
    sch.transform_block_layout(block, apart)
    sch = s_tir.Schedule(_same_for_all_lanes(sch.mod["main"], sch.get(block).iter_vars[-1]))
    (block,) = sch.get_child_blocks(sch.get_sblock("root"))
    *loops, lane = sch.get_loops(block)
    return sch, loops, lane


def _is_map(sch: s_tir.Schedule, block: SBlockRV) -> bool:
    """Whether all its axes are its output's, of known lengths; a number alone has none."""
    lengths, axes = extents(sch, sch.get_loops(block)), sch.get(block).iter_vars
    return bool(lengths) and UNKNOWN not in lengths and all(each.iter_type == tirx.IterVar.DataPar for each in axes)


def _vector(sch: s_tir.Schedule, block: SBlockRV) -> tuple[int, int]:
    """How many last axes a vector lies along, and how many values it has; 1 where there is none.

    Along several, all tensors have them in common. Along one, they may begin anywhere, as in a concatenation.
    """
    computed, lengths = sch.get(block), extents(sch, sch.get_loops(block))
    variables = [each.var for each in computed.iter_vars]
    tensors = [*computed.reads, *computed.writes]
    indices = [[each.min for each in tensor.region] for tensor in tensors]
    axes = 0
    while axes < len(variables) and all(shares_axes(each, variables, axes + 1) for each in indices):
        axes += 1
    sizes = [math.prod(lengths[len(lengths) - max(axes, 1) :])]
    if axes <= 1:
        axes, sizes = 1, [*sizes, *(_offset(each, variables) for each in indices)]
    types = [tvm.DataType(each.source.dtype) for each in tensors]
    return axes, vector_length(max(each.bits for each in types), *sizes, _most_lanes(computed.body, types))


def _most_lanes(body: tirx.Stmt, types: list[tvm.DataType]) -> int:
    """Values of a vector at most: TVM has no CUDA for more than four truth values.

    One where what is read depends on a condition, and functions are called.
    """
    found: list[Call | tirx.Select] = []
    tvm_ffi.structural_walk(body, ((Call, tirx.Select), found.append))
    if calls_functions(body) and any(isinstance(each, Call) and each.op.same_as(CHOICE) for each in found):
        return 1
    has_truths = any(isinstance(each, tirx.Select) for each in found) or any(str(each) == "bool" for each in types)
    return 4 if has_truths else 16


def _offset(index: list[Expr], variables: list[Var]) -> int:
    """Where the map's last axis begins in a tensor; 1: nowhere, as it is another's axis or runs at another pace."""
    own = variables[-1]
    if not uses(index, [own]):
        return 0
    offset = Analyzer().simplify(index[-1] - own)
    return int(offset) if isinstance(offset, IntImm) and not uses(index[:-1], [own]) else 1


def _same_for_all_lanes(func: tirx.PrimFunc, lane: tirx.IterVar) -> tirx.PrimFunc:
    """`func` with conditions that are the same for all of `lane` without it, else TVM reads a vector value by value."""
    analyzer = Analyzer()
    analyzer.bind(lane.var, lane.dom)

    def without(condition: Expr) -> Expr:
        first = analyzer.simplify(substituted(condition, lane.var, IntImm(lane.var.ty.dtype, 0)))
        is_same = _follows(analyzer, first, condition) and _follows(analyzer, condition, first)
        return first if is_same else condition

    body = tvm_ffi.structural_map(func.body, [(COMPARISONS, without)], order="post")
    return func.with_body(body)


def _follows(analyzer: Analyzer, given: Expr, wanted: Expr) -> bool:
    """Whether TVM can prove `wanted` from `given`: of its two ways, each proves what the other does not."""
    with analyzer.constraint_scope(given):
        if analyzer.can_prove(wanted):
            return True
    return bool(analyzer.can_prove(tirx.Or(tirx.Not(given), wanted)))
