"""Tasks of a parallel loop that threads take one after the other, so that none waits for a slow one.

TVM deals a loop's turns out in equal runs before its threads begin. A core that is slower than others, as the host of a
virtual machine gives it to someone else, or as it is one of a processor's efficient ones, then holds up all. Here each
thread begins with a run of its own, which others take from only when theirs are done, and then takes what is left of
other runs (Blumofe and Leiserson 1999, "Scheduling Multithreaded Computations by Work Stealing").
"""

import tvm_ffi
from tvm import tirx
from tvm.ir import Expr, StringImm
from tvm.tirx import (
    AllocBuffer,
    AttrStmt,
    Bind,
    BufferLoad,
    BufferStore,
    For,
    ForKind,
    IfThenElse,
    IntImm,
    Stmt,
    Var,
    While,
)

from tvm_sparse.codegen.tir.tir_builder import IMPORT, function_name, function_pass, integer, sequence, substituted
from tvm_sparse.target.cpu_info import LINE
from tvm_sparse.target.resolve import thread_count

# Times that a thread takes tasks of its run at most: several at once where there are more, as taking takes 20 ns.
MOST_TAKEN = 32
# The next task of a run, and the same to take it. What tasks write is seen by others when the loop ends.
_FUNCTIONS = """
define i32 @{name}_next(ptr %run) alwaysinline {{
  %task = load atomic i32, ptr %run monotonic, align 4
  ret i32 %task
}}
define i32 @{name}_take(ptr %run) alwaysinline {{
  %task = atomicrmw add ptr %run, i32 1 monotonic
  ret i32 %task
}}
"""


@function_pass("SharedTasks")
def shared_tasks(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func`, if it is for several threads of a CPU, with tasks of its loops of more turns than there are threads."""
    target = func.attrs["target"]
    threads = thread_count(target) if target.kind.name == "llvm" else 1
    found = list[For]()

    def loop(node: For) -> Stmt:
        if node.kind != ForKind.PARALLEL or not _is_shared(node, threads):
            return node
        found.append(node)
        return _shared(node, threads, function_name(func))

    body = tvm_ffi.structural_map(func.body, (For, loop), order="post") if threads > 1 else func.body
    if not found:
        return func
    functions = StringImm(_FUNCTIONS.format(name=function_name(func)))
    return func.with_body(AttrStmt(integer(0), IMPORT, functions, body))


def _is_shared(loop: For, threads: int) -> bool:
    """Whether it has more turns than threads, and indices are 32 bits."""
    extent = loop.extent
    return isinstance(extent, IntImm) and extent.ty.dtype == "int32" and threads < int(extent) < 2**31 // threads


def _shared(loop: For, threads: int, name: str) -> Stmt:
    """The parallel `loop` as one over `threads`, each of which takes turns of its own run, and then those of others."""
    turns, each = int(loop.extent), -(-int(loop.extent) // (threads * MOST_TAKEN))
    tasks = -(-turns // each)
    # Each run's next task is in a line of its own.
    runs = tirx.decl_buffer((threads * LINE,), "int32", "runs")
    taken = tirx.decl_buffer((1,), "int32", "taken", scope="local")
    first, thread, other, task, turn = (Var(name, "int32") for name in ("first", "thread", "other", "task", "turn"))
    number = tirx.floormod(thread + other, integer(threads))
    place = tirx.address_of(BufferLoad(runs, [number * LINE]))
    end = tirx.floordiv((number + 1) * tasks, integer(threads))
    of_task = BufferLoad(taken, [integer(0)])
    take = BufferStore(taken, tirx.call_extern("int32", f"{name}_take", place), [integer(0)])
    count = integer(each) if turns % each == 0 else tirx.min(integer(each), turns - task * each)
    # A loop even of one turn: TVM frees what is allocated within one at its end, but within a `While` behind it.
    body = _serial(turn, count, substituted(loop.body, loop.loop_var, loop.min + task * each + turn))
    all_of_run = sequence([take, While(of_task < end, sequence([Bind(task, of_task), body, take]))])
    # What an exhausted run would give is only looked at.
    has_more = tirx.call_extern("int32", f"{name}_next", place) < end
    taking = _serial(other, integer(threads), IfThenElse(has_more, all_of_run, None))
    begin = BufferStore(runs, tirx.floordiv(first * tasks, integer(threads)), [first * LINE])
    sharing = For(thread, integer(0), integer(threads), ForKind.PARALLEL, sequence([AllocBuffer(taken), taking]))
    return sequence([AllocBuffer(runs), _serial(first, integer(threads), begin), sharing])


def _serial(variable: Var, turns: Expr, body: Stmt) -> For:
    return For(variable, integer(0), turns, ForKind.SERIAL, body)
