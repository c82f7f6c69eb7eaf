"""Schedule a CPU model's transposes, and what is computed with them element by element, by squares in registers.

Elements that lie side by side in the result lie apart in what is read, or the other way round: LLVM loads or stores
them one by one. Between its linear and its depthwise layers ConvNeXt transposes each tensor twice.
"""

import math
from functools import partial

import tvm
from tvm import s_tir, tirx
from tvm.ir import Op
from tvm.s_tir.schedule import SBlockRV
from tvm.tirx import Var

from tvm_sparse.codegen.cpu.hoisted_conditions import conditions
from tvm_sparse.compiler.cpu_loops.schedule_elements import LEAST_WORK, maps, outermost
from tvm_sparse.compiler.rewriting.unscheduled import UNKNOWN, calls_in, extents, scheduling_pass, uses
from tvm_sparse.conv.dtypes import FLOAT32
from tvm_sparse.scheduling.annotations import SQUARE, TRANSPOSE

# Axes of a block that are neighbours, by their places.
_Axes = range


def schedule_transposes(lanes: int) -> tvm.transform.Pass:
    """The pass that schedules every unscheduled function that is one map with one tensor transposed."""
    return scheduling_pass("schedule_transposes")(partial(_schedule, lanes=lanes))


def _schedule(sch: s_tir.Schedule, blocks: list[SBlockRV], lanes: int) -> s_tir.Schedule | None:
    """Schedule a function; None where it is no such map, or its axes are no multiples of squares."""
    left = maps(sch, blocks)
    found = _transposed(sch, left[0]) if len(left) == 1 else None
    if found is None:
        return None
    _in_squares(sch, left[0], *found, lanes)
    return sch


def _transposed(sch: s_tir.Schedule, block: SBlockRV) -> tuple[_Axes, _Axes] | None:
    """The axes that lie side by side in the one tensor that is transposed, and those in all others, which are last."""
    computed = sch.get(block)
    variables = [each.var for each in computed.iter_vars]
    indices = [_index(of) for of in (*computed.reads, *computed.writes)]
    types = {str(of.source.ty.dtype) for of in (*computed.reads, *computed.writes)}
    columns = [index for index in indices if index and uses(index[:-1], variables[-1:])]
    if types != {FLOAT32} or not _is_in_vectors(computed.body) or len(columns) != 1:
        return None
    own = next((i for i, each in enumerate(variables) if columns[0][-1].same_as(each)), None)
    if own is None or own == len(variables) - 1 or not indices[-1][-1].same_as(variables[-1]):
        return None
    sides = _run(own, 0, variables, indices), _run(len(variables) - 1, own + 1, variables, indices)
    sizes = extents(sch, sch.get_loops(block))
    are_squares = all(each and math.prod(sizes[i] for i in each) % SQUARE == 0 for each in sides)
    return sides if are_squares else None


def _is_in_vectors(body: tirx.Stmt) -> bool:
    """Whether it asks for no condition, and calls functions that TVM computes in vectors alone."""
    return not conditions(body) and all(_has_vectors(each.op) for each in calls_in(body))


def _has_vectors(function: Op) -> bool:
    return bool(function.has_attr("TVectorizable") and function.get_attr("TVectorizable"))


def _index(of: tirx.BufferRegion) -> list[tirx.Expr]:
    """Where a map reads or writes a tensor, along the axes of more than one element."""
    sizes = (getattr(size, "value", UNKNOWN) for size in of.source.ty.shape)
    return [each.min for each, size in zip(of.region, sizes, strict=True) if size != 1]


def _run(last: int, first: int, variables: list[Var], indices: list[list[tirx.Expr]]) -> _Axes:
    """The axes up to `last`, and no further than `first`, that are neighbours in every tensor that has one of them."""
    for start in range(first, last + 1):
        own = variables[start : last + 1]
        if all(_are_neighbours(index, own) for index in indices):
            return range(start, last + 1)
    return range(0)


def _are_neighbours(index: list[tirx.Expr], own: list[Var]) -> bool:
    """Whether a tensor has all of these axes one after the other, or none of them."""
    for place in range(len(index) - len(own) + 1):
        if all(index[place + i].same_as(each) for i, each in enumerate(own)):
            return not uses([*index[:place], *index[place + len(own) :]], own)
    return not uses(index, own)


def _in_squares(sch: s_tir.Schedule, block: SBlockRV, aside: _Axes, last: _Axes, lanes: int) -> None:
    """Compute `SQUARE` elements along the axes `aside`, each of them a vector along the `last`."""
    loops = sch.get_loops(block)
    sizes = extents(sch, loops)
    outer = [loop for i, loop in enumerate(loops) if i not in (*aside, *last)]
    columns, rows = (sch.fuse(*(loops[i] for i in axes)) for axes in (aside, last))
    length = math.gcd(lanes, math.prod(sizes[i] for i in last))
    column, inner = sch.split(columns, [None, SQUARE])
    row, lane = sch.split(rows, [None, length])
    # The shorter axis is inner: its lines stay in the level-1 cache.
    both = [row, column] if int(sch.get(row).extent) * length > int(sch.get(column).extent) * SQUARE else [column, row]
    sch.reorder(*outer, *both, inner, lane)
    sch.vectorize(lane)
    sch.annotate(inner, TRANSPOSE, 1)
    outer += both
    if math.prod(sizes) >= LEAST_WORK:
        sch.parallel(sch.fuse(*outer[: outermost(extents(sch, outer))]))
