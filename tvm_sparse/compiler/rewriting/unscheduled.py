"""The functions of a module that no pass has scheduled yet, and what schedules of them have in common."""

import math
from collections.abc import Callable, Sequence

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Call, Expr
from tvm.s_tir import SBlockRealize
from tvm.s_tir.schedule import LoopRV, SBlockRV, ScheduleError
from tvm.sym import Analyzer
from tvm.tirx import Var
from tvm.tirx.analysis import undefined_vars

from tvm_sparse.codegen.cpu.hoisted_conditions import CHOICE
from tvm_sparse.codegen.tir.bounded import BOUNDED
from tvm_sparse.scheduling.space import divisors

# Threads of a block of a GPU where nothing asks for another number.
THREADS = 256
# The extent of a loop that is no constant.
UNKNOWN = -1
# Bytes that a thread of a GPU reads or writes at a time: the most that there is.
VECTOR_BYTES = 16
# A function anew; None where it stays as it is.
Rewrite = Callable[[tirx.PrimFunc], tirx.PrimFunc | None]
# Schedules a function of these blocks; None where that stays as it is, as it does where TVM refuses a step.
Rule = Callable[[s_tir.Schedule, list[SBlockRV]], s_tir.Schedule | None]


def unscheduled_pass(name: str) -> Callable[[Rewrite], tvm.transform.Pass]:
    """Decorates what rewrites a function that was not scheduled: the pass ``tvm_sparse.<name>``.

    Functions of shapes stay as they are: they run on the CPU whatever the target. So do those that are no blocks of
    loops but one piece, such as TVM's sorts and scans.
    """

    def pass_of(rewrite: Rewrite) -> tvm.transform.Pass:
        def apply(module: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
            result = module.clone()
            for key, func in module.functions_items():
                if isinstance(func, tirx.PrimFunc) and not is_served(func) and has_blocks(func):
                    rewritten = rewrite(func)
                    if rewritten is not None:
                        result[key] = rewritten
            return result

        return tvm.transform.module_pass(apply, opt_level=0, name=f"tvm_sparse.{name}")

    return pass_of


def scheduling_pass(name: str, *marks: str) -> Callable[[Rule], tvm.transform.Pass]:
    """Decorates a rule: the pass ``tvm_sparse.<name>``, after which functions have the attributes `marks` too."""

    def pass_of(rule: Rule) -> tvm.transform.Pass:
        @unscheduled_pass(name)
        def scheduled(func: tirx.PrimFunc) -> tirx.PrimFunc | None:
            sch = s_tir.Schedule(func)
            try:
                done = rule(sch, sch.get_child_blocks(sch.get_sblock("root")))
            except ScheduleError:
                return None
            marked = dict.fromkeys(("tirx.is_scheduled", *marks), True)
            return None if done is None else done.mod["main"].with_attr(marked)

        return scheduled

    return pass_of


def is_served(func: tirx.PrimFunc) -> bool:
    """Whether a function needs no schedule: it has one, or belongs to the CPU."""
    return any(each in (func.attrs or {}) for each in ("tirx.is_scheduled", "tirx.is_host_func"))


def has_blocks(func: tirx.PrimFunc) -> bool:
    """Whether a function consists of blocks that a schedule can move, all within the one that TVM names ``root``."""
    return isinstance(func.body, SBlockRealize) and func.body.block.name_hint == "root"


def launches_threads(func: tirx.PrimFunc) -> bool:
    """Whether a function was written for a GPU: not of blocks of loops, but with threads of its own."""
    found: list[tirx.AttrStmt] = []
    tvm_ffi.structural_walk(func.body, (tirx.AttrStmt, found.append))
    return not has_blocks(func) and any(each.attr_key == "thread_extent" for each in found)


def extents(sch: s_tir.Schedule, loops: Sequence[LoopRV]) -> list[int]:
    """How long loops are, each `UNKNOWN` where that is no constant."""
    return [int(getattr(sch.get(loop).extent, "value", UNKNOWN)) for loop in loops]


def largest_divisor(extent: int, most: int) -> int:
    """The largest divisor of `extent` up to `most`."""
    return divisors(extent, most)[-1]


def spread(sch: s_tir.Schedule, loops: Sequence[LoopRV]) -> LoopRV:
    """The loop over threads of a GPU of all turns of `loops`, which are nested, one turn a thread."""
    block, thread = sch.split(sch.fuse(*loops), [None, THREADS])
    sch.bind(block, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    return thread


def is_padding(sch: s_tir.Schedule, block: SBlockRV) -> bool:
    """Whether it is a pool's input with a border, which one other block of loops reads."""
    return sch.get(block).name_hint.startswith("pad_temp") and len(sch.get_consumers(block)) == 1


def vector_length(bits: int, *sizes: int) -> int:
    """Values of `bits` that a thread of a GPU moves at a time: a power of two, as for TVM, that divides `sizes`."""
    return math.gcd(VECTOR_BYTES * 8 // bits, *sizes)


def shares_axes(index: list[Expr], variables: list[Var], axes: int) -> bool:
    """Whether the last `axes` of a map are the last of the tensor that `index` reads, or none of its axes."""
    own, before, last = variables[len(variables) - axes :], index[: len(index) - axes], index[len(index) - axes :]
    is_whole = len(last) == axes and all(each.same_as(var) for each, var in zip(last, own, strict=True))
    return not uses(before, own) and (is_whole or not uses(last, own))


def uses(expressions: list[Expr], variables: list[Var]) -> bool:
    """Whether any of `expressions` asks for any of `variables`."""
    return any(found.same_as(var) for each in expressions for found in undefined_vars(each) for var in variables)


def interleaving(sch: s_tir.Schedule, block: SBlockRV) -> int:
    """After how many elements of the last axis the same channel is read again; 1 where it is always the same."""
    computed, analyzer = sch.get(block), Analyzer()
    for each in computed.iter_vars:
        analyzer.bind(each.var, each.dom)
    last = computed.iter_vars[-1].var
    found = [1]

    def note(node: tirx.FloorMod) -> None:
        if uses([node.a], [last]) and isinstance(node.b, tirx.IntImm):
            found.append(int(node.b))

    indices: list[Expr] = [analyzer.simplify(each.min) for of in computed.reads for each in of.region[:-1]]
    for index in indices:
        tvm_ffi.structural_walk(index, (tirx.FloorMod, note))
    return max(found)


def calls_in(body: tirx.Stmt) -> list[Call]:
    """The calls of functions in it, which are no choices by a condition."""
    found: list[Call] = []
    tvm_ffi.structural_walk(body, (Call, found.append))
    return [each for each in found if not each.op.same_as(CHOICE)]


def calls_functions(body: tirx.Stmt) -> bool:
    """Whether it calls functions that take more instructions than a sum or a bound."""
    return any(not each.op.same_as(BOUNDED) for each in calls_in(body))
