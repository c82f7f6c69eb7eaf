"""SHA-256 of TVM's IR: all of it, the bytes of constants included, the same in every process.

`tvm_ffi.structural_hash` is a hash for tables: it takes a constant's bytes modulo 2**31 - 1.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Expr, GenericConst


def ir_digest(node: Any) -> str:
    """Of a function or a module, 64 hex digits; whatever differs in two of them, they have other digests."""
    if isinstance(node, tvm.IRModule):
        node = _without_constants(node)
    return hashlib.sha256(tvm.ir.save_json(node).encode()).hexdigest()


def _without_constants(module: tvm.IRModule) -> tvm.IRModule:
    """`module` with a variable for each constant of its graph: as JSON, 100 MB of weights take seconds."""
    found = module.clone()
    for name, function in module.functions.items():
        if isinstance(function, relax.Function):
            found[name] = _Named(module).visit_expr(function)
    return found


@relax.expr_functor.mutator
class _Named(relax.PyExprMutator):
    """Puts a variable of the same type, free and named by the content, in the place of each constant."""

    def visit_generic_const_(self, op: GenericConst) -> Expr:
        # The variable's type has the shape and the element type.
        content = np.ascontiguousarray(op.value.numpy()).reshape(-1).view(np.uint8).data
        return relax.Var(hashlib.sha256(content).hexdigest(), op.ty)
