"""Small parts of TIR that the passes are written with."""

from collections.abc import Callable
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Call, Expr, Op
from tvm.tirx import AttrStmt, BufferStore, Evaluate, For, IntImm, SeqStmt, Stmt, Var

# TVM's attribute for LLVM IR that is linked into the module around it, its functions inlined.
IMPORT = "pragma_import_llvm"


def function_pass(name: str) -> Callable[[Callable[[tirx.PrimFunc], tirx.PrimFunc]], tvm.transform.Pass]:
    """Decorates what rewrites a function: the pass ``tvm_sparse.<name>``, which applies it to every function."""

    def pass_of(rewrite: Callable[[tirx.PrimFunc], tirx.PrimFunc]) -> tvm.transform.Pass:
        return tirx.transform.prim_func_pass(
            lambda func, _module, _context: rewrite(func), opt_level=0, name=f"tvm_sparse.{name}"
        )

    return pass_of


def loop_pass(name: str, key: str) -> Callable[[Callable[[tirx.PrimFunc, list[For]], Stmt]], tvm.transform.Pass]:
    """Decorates what makes the new body of a function that has loops annotated `key`; the rest is left alone."""

    def pass_of(rewrite: Callable[[tirx.PrimFunc, list[For]], Stmt]) -> tvm.transform.Pass:
        def rewritten(func: tirx.PrimFunc) -> tirx.PrimFunc:
            loops: list[For] = []
            tvm_ffi.structural_walk(
                func.body, (For, lambda loop: loops.append(loop) if key in loop.annotations else None)
            )
            return func.with_body(rewrite(func, loops)) if loops else func

        return function_pass(name)(rewritten)

    return pass_of


def each_loop_pass(name: str, key: str) -> Callable[[Callable[[For, str], Stmt]], tvm.transform.Pass]:
    """Decorates what replaces a loop annotated `key`, in the function of that name; the rest is left alone."""

    def pass_of(rewrite: Callable[[For, str], Stmt]) -> tvm.transform.Pass:
        def rewritten(func: tirx.PrimFunc, _loops: list[For]) -> Stmt:
            def loop(node: For) -> Stmt:
                return rewrite(node, function_name(func)) if key in node.annotations else node

            return tvm_ffi.structural_map(func.body, (For, loop), order="post")

        return loop_pass(name, key)(rewritten)

    return pass_of


def function_name(func: tirx.PrimFunc) -> str:
    """The name of `func` for messages."""
    return str(func.attrs["global_symbol"]) if "global_symbol" in func.attrs else "kernel"


def integer(value: int) -> IntImm:
    """An int32 constant."""
    return IntImm("int32", value)


def sequence(statements: list[Stmt]) -> Stmt:
    """One statement after the other; there is at least one."""
    return SeqStmt(statements) if len(statements) > 1 else statements[0]


def statements_of(stmt: Stmt) -> list[Stmt]:
    """The statements of a sequence, nested ones included."""
    if isinstance(stmt, SeqStmt):
        return [each for inner in stmt.seq for each in statements_of(inner)]
    return [stmt]


def nothing() -> Stmt:
    """A statement without effect."""
    return Evaluate(integer(0))


def prefetch(tensor: Var, index: Expr, hints: tuple[int, int, int]) -> Stmt:
    """Ask for the line of an element, with `hints` for llvm.prefetch; behind the last element that does nothing."""
    address = tirx.address_of(tirx.BufferLoad(tensor, [index]))
    return Evaluate(tirx.call_intrin("void", "tirx.prefetch", address, *map(integer, hints)))


def is_barrier(stmt: Stmt) -> bool:
    """Whether `stmt` is a barrier of a thread block."""
    return (
        isinstance(stmt, Evaluate)
        and isinstance(stmt.value, Call)
        and stmt.value.op.same_as(Op.get("tirx.tvm_storage_sync"))
    )


def barrier() -> Stmt:
    """All threads of the block arrive, and see each other's shared memory."""
    return Evaluate(tirx.call_intrin("void", "tirx.tvm_storage_sync", "shared.dyn"))


def committed(copies: Stmt) -> Stmt:
    """`copies` as one group that can be waited for."""
    return AttrStmt(integer(0), "async_commit_queue_scope", integer(0), copies)


def waited(in_flight: int, body: Stmt) -> Stmt:
    """`body` behind a wait until at most `in_flight` groups of this thread's copies are not complete."""
    inner = AttrStmt(integer(0), "async_wait_inflight_count", integer(in_flight), body)
    return AttrStmt(integer(0), "async_wait_queue_scope", integer(0), inner)


class Counter:
    """An integer in a register."""

    def __init__(self, name: str):
        self.buffer = tirx.decl_buffer((1,), "int32", name, scope="local")
        self.value = tirx.BufferLoad(self.buffer, [integer(0)])

    def set(self, value: Expr) -> Stmt:
        """The statement that assigns `value`."""
        return BufferStore(self.buffer, value, [integer(0)])

    def next(self, step: int, last: IntImm) -> Stmt:
        """The statement that moves on by `step`, and from `last` to 0."""
        return self.set(tirx.Select(self.value < last, self.value + step, integer(0)))


def substituted(stmt: Any, var: Var, value: object) -> Any:
    """`stmt`, or an expression, with `var` replaced by `value`."""
    return tvm_ffi.structural_map(stmt, (Var, lambda v: value if v.same_as(var) else v), order="post")
