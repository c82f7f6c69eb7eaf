"""Conditions of expressions as branches outside of the loops that they do not ask for: a loop for each way.

Which part of a concatenation a row is from is asked once a row so, and the row is copied in vectors. TVM's
HoistExpression does the same in time that doubles with each part; DenseNet-121 has up to 60.
"""

import tvm_ffi
from tvm import tirx
from tvm.ir import Call, Expr, Op
from tvm.tirx import For, IfThenElse, Stmt
from tvm.tirx.analysis import undefined_vars

from tvm_sparse.codegen.tir.tir_builder import function_pass
from tvm_sparse.scheduling.annotations import HOIST

# What is one or another value by a condition.
CHOICE = Op.get("prim.if_then_else")


@function_pass("HoistedConditions")
def hoisted_conditions(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func`, of loops, not of blocks, with a branch for each way, if it has the attribute `HOIST`."""
    if HOIST not in (func.attrs or {}):
        return func
    return func.with_body(tvm_ffi.structural_map(func.body, (For, _branched), order="pre"))


def conditions(stmt: Stmt) -> list[Expr]:
    """What its expressions ask for, a choice before those among its ways."""
    found: list[Expr] = []

    def note(call: Call) -> None:
        if call.op.same_as(CHOICE):
            found.append(call.args[0])

    tvm_ffi.structural_walk(stmt, (Call, note), order="pre")
    return found


def _branched(loop: For) -> Stmt:
    """`loop`, or a branch with it on either side, where a condition asks for nothing that it defines."""
    given = undefined_vars(loop)
    for condition in conditions(loop):
        if all(any(asked.same_as(each) for each in given) for asked in undefined_vars(condition)):
            return IfThenElse(condition, _resolved(loop, condition, True), _resolved(loop, condition, False))
    return loop


def _resolved(loop: For, condition: Expr, is_true: bool) -> Stmt:
    """`loop` where `condition` is known."""

    def resolve(call: Call) -> Expr:
        is_asked = call.op.same_as(CHOICE) and tvm_ffi.structural_equal(call.args[0], condition)
        return call.args[1 if is_true else 2] if is_asked else call

    return tvm_ffi.structural_map(loop, (Call, resolve))
