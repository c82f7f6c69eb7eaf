"""Which tensors of a module are none of half precision in the model, which stores its tensors so.

That is those that the model has in float32, and steps within one of its operators. The front ends note them as they
import; the names travel as an attribute of ``main``.
"""

from collections.abc import Iterable

import tvm
from tvm.ir import Expr, Var

# Attribute of ``main``: name of a variable -> one of the two below.
STEPS = "tvm_sparse.steps"
INNER, WIDE = "inner", "float32"


def with_steps(module: tvm.IRModule, stored: Iterable[Expr], wide: Iterable[Expr]) -> tvm.IRModule:
    """`module`, as it was imported, that knows its steps.

    All variables of ``main`` are steps but for `stored`, tensors of the model that may be stored in half precision.
    `wide` are those that it has in float32; a step that leads to nothing else is of float32, too.
    """
    main = module["main"]
    known: dict[Expr, str] = dict.fromkeys(stored, "") | dict.fromkeys(wide, WIDE)
    bindings = [binding for block in main.body.blocks for binding in block.bindings]
    for binding in bindings:
        # An output is another name of what it is.
        if isinstance(binding.value, Var):
            known[binding.var] = known.get(binding.value, INNER)
    readers: dict[Var, set[str]] = {}
    for binding in reversed(bindings):
        read = readers.get(binding.var, set())
        kind = known.setdefault(binding.var, WIDE if read == {WIDE} else INNER)
        for var in tvm.relax.analysis.free_vars(binding.value):
            readers.setdefault(var, set()).add(kind)
    names = {var.name: kind for var, kind in known.items() if isinstance(var, Var) and kind}
    result = module.clone()
    result["main"] = main.with_attr(STEPS, names)
    return result
