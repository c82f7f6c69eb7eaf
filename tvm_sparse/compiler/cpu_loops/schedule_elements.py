"""Schedule what a CPU model computes element by element between layers: a chain in one pass, vectors, all threads.

Such are activations, batch norms that no layer took in, concatenations and shuffles of channels. The elements that lie
side by side in all tensors are one loop, whatever axes they are of; which part of a concatenation they are from is
asked outside it. LLVM makes no vectors of a loop with conditions, or of 28 elements and less than half a vector more.
"""

import math
from collections.abc import Sequence
from functools import partial

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Call, Expr, TensorLoad
from tvm.s_tir.schedule import LoopRV, SBlockRV, ScheduleError
from tvm.sym import Analyzer
from tvm.tirx import Var

from tvm_sparse.codegen.cpu.hoisted_conditions import CHOICE, conditions
from tvm_sparse.compiler.rewriting.unscheduled import (
    UNKNOWN,
    calls_functions,
    calls_in,
    extents,
    scheduling_pass,
    shares_axes,
    uses,
)
from tvm_sparse.scheduling.annotations import HOIST, VECTORS

# Elements that a function visits from which on threads gain more than the 5 us that they take to begin.
LEAST_WORK = 1 << 15
# Vectors that make a loop long enough.
LONG = 16
# Turns of the parallel loop that keep threads equally busy.
ENOUGH = 16


def schedule_elements(lanes: int) -> tvm.transform.Pass:
    """The pass that schedules every unscheduled function of maps alone, with vectors of `lanes` elements."""
    return scheduling_pass("schedule_elements", HOIST)(partial(_schedule, lanes=lanes))


def _schedule(sch: s_tir.Schedule, blocks: list[SBlockRV], lanes: int) -> s_tir.Schedule | None:
    """Schedule a function; None where it computes anything but maps of known sizes whose last axes lie side by side."""
    left = maps(sch, blocks)
    return sch if left and all(_is_in_vectors(sch, each, lanes) for each in left) else None


def maps(sch: s_tir.Schedule, blocks: list[SBlockRV]) -> list[SBlockRV]:
    """The blocks left of a function of maps of known sizes alone, others computed now where they are read; or none."""
    return [each for each in blocks if not _is_inlined(sch, each)] if all(_is_map(sch, each) for each in blocks) else []


def _is_map(sch: s_tir.Schedule, block: SBlockRV) -> bool:
    axes = sch.get(block).iter_vars
    is_spatial = all(each.iter_type == tirx.IterVar.DataPar for each in axes)
    loops = sch.get_loops(block)
    return is_spatial and 0 < len(axes) == len(loops) and UNKNOWN not in extents(sch, loops)


def _is_inlined(sch: s_tir.Schedule, block: SBlockRV) -> bool:
    """Compute a block where it is read, unless that computes it more often; whether it was done."""
    consumers = sch.get_consumers(block)
    if not consumers:
        return False
    size, most = (max(math.prod(extents(sch, sch.get_loops(each))) for each in group) for group in ([block], consumers))
    body = sch.get(block).body
    is_long = len(consumers) > 1 and (_names(body) or calls_functions(body))
    if _computes(body) and (size < most or is_long):
        return False
    if any(_copies(sch, block, each) for each in consumers):
        return False
    try:
        sch.compute_inline(block)
    except ScheduleError:
        # The output, for example, which somebody reads.
        return False
    return True


def _computes(body: tirx.Stmt) -> bool:
    """Whether a block does more than to choose and to copy."""
    found: list[Expr] = []
    kinds = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Max, tirx.Min, tirx.Select, tirx.Let, Call)

    def note(node: Expr) -> None:
        if str(node.ty.dtype).startswith(("float", "bfloat")) and not _is_choice(node):
            found.append(node)

    tvm_ffi.structural_walk(body, (kinds, note))
    return bool(found)


def _copies(sch: s_tir.Schedule, block: SBlockRV, consumer: SBlockRV) -> bool:
    """Whether names of values in a block would be in several places of a consumer, of which TVM makes no vectors.

    Arguments of calls count: TVM visits them twice.
    """
    loads: list[TensorLoad] = []
    body, written = sch.get(consumer).body, sch.get(block).writes[0].source
    tvm_ffi.structural_walk(body, (TensorLoad, loads.append))
    times = sum(each.source.same_as(written) for each in loads)
    return _names(sch.get(block).body) and (times > 1 or _names(body) or bool(calls_in(body)))


def _names(body: tirx.Stmt) -> bool:
    """Whether it names a value: TVM writes such an expression, an exponential, once."""
    names: list[tirx.Let] = []
    tvm_ffi.structural_walk(body, (tirx.Let, names.append))
    return bool(names)


def _is_choice(node: Expr) -> bool:
    return isinstance(node, Call) and node.op.same_as(CHOICE)


def _is_in_vectors(sch: s_tir.Schedule, block: SBlockRV, lanes: int) -> bool:
    """Whether a block's elements are computed in vectors now, by all threads where there is work for them.

    One whose elements lie apart is no matter where it is a step towards another: the rows of an image, resized first.
    """
    loops = sch.get_loops(block)
    sizes, axes, shared = extents(sch, loops), _side_by_side(sch, block), 0
    if axes == 0 and not sch.get_consumers(block):
        return False
    # Of a part of a loop over more axes TVM may not see that its elements lie side by side.
    lengths = {count: math.prod(sizes[len(loops) - count :]) for count in range(1, axes + 1)}
    axes = next((count for count, size in lengths.items() if size % lanes == 0 or size >= LONG * lanes), axes)
    if math.prod(sizes) >= LEAST_WORK:
        shared = outermost(sizes[:-1])
        axes = min(axes, len(loops) - shared)
    if axes > 0:
        inner, size = sch.fuse(*loops[len(loops) - axes :]), math.prod(sizes[len(loops) - axes :])
        in_vectors(sch, block, inner, size, lanes)
    if math.prod(sizes[:shared]) > 1:
        sch.parallel(sch.fuse(*loops[:shared]))
    return True


def outermost(sizes: Sequence[int]) -> int:
    """How many of the outermost of loops of such `sizes` run in parallel."""
    return next((count for count in range(1, len(sizes) + 1) if math.prod(sizes[:count]) >= ENOUGH), len(sizes))


def in_vectors(sch: s_tir.Schedule, block: SBlockRV, loop: LoopRV, size: int, lanes: int) -> None:
    """Compute the `size` elements of a loop in vectors; if these do not divide them, of a result alone.

    The last vector then computes some elements again, and TVM may let others take the place of what they are computed
    of: a quotient would be divided twice.
    """
    if size % lanes == 0:
        sch.vectorize(sch.split(loop, [None, lanes])[1])
    elif size > lanes and not sch.get_consumers(block):
        sch.annotate(loop, VECTORS, lanes)


def _side_by_side(sch: s_tir.Schedule, block: SBlockRV) -> int:
    """How many of a block's last axes, for which no condition asks, are the last of each tensor or none of its axes."""
    computed = sch.get(block)
    analyzer = Analyzer()
    for each in computed.iter_vars:
        analyzer.bind(each.var, each.dom)
    variables = [each.var for each in computed.iter_vars]
    indices = [[analyzer.simplify(each.min) for each in of.region] for of in (*computed.reads, *computed.writes)]
    asked, axes = [analyzer.simplify(each) for each in conditions(computed.body)], 0

    def are_shared(index: list[Expr]) -> bool:
        # A part of an axis, such as one of the three that a transformer's linear layer makes, begins anywhere in it.
        is_part = axes == 0 and _runs_along(index, variables[-1], analyzer)
        return is_part or shares_axes(index, variables, axes + 1)

    while axes < len(variables) and all(map(are_shared, indices)):
        if uses(asked, [variables[len(variables) - axes - 1]]):
            break
        axes += 1
    return axes


def _runs_along(index: list[Expr], variable: Var, analyzer: Analyzer) -> bool:
    """Whether the elements of a tensor that an axis goes along lie side by side in it."""
    return not uses([*index[:-1], analyzer.simplify(index[-1] - variable)], [variable]) if index else True
