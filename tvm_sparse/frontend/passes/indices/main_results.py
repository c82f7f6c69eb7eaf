"""What ``main`` returns, as a list, and ``main`` with another list."""

from collections.abc import Callable, Mapping, Sequence

import tvm
from tvm import relax
from tvm.ir import Expr, Var


def results_of(value: Expr, definitions: Mapping[Var, Expr], bind: Callable[[Expr], Expr]) -> list[Expr]:
    """The tensors of `value`, which ``main`` returns: itself, or the fields of a tuple."""
    if isinstance(value.ty, relax.TensorType):
        return [value]
    made = definitions.get(value) if isinstance(value, Var) else value
    if isinstance(made, relax.Tuple):
        return list(made.fields)
    return [bind(relax.TupleGetItem(value, index)) for index in range(len(value.ty.fields))]


def with_results(module: tvm.IRModule, bindings: Sequence[relax.Binding], results: Sequence[Expr]) -> tvm.IRModule:
    """`module` whose ``main`` has `bindings`, no dataflow blocks, and returns `results`, several as a tuple."""
    main = module["main"]
    if len(results) == 1:
        returned = results[0]
        blocks = [relax.BindingBlock(list(bindings))]
    else:
        builder = relax.BlockBuilder(module)
        value = builder.normalize(relax.Tuple(list(results)))
        returned = relax.Var("outputs", value.ty)
        blocks = [relax.BindingBlock([*bindings, relax.VarBinding(returned, value)])]
    result = module.clone()
    body = relax.SeqExpr(blocks, returned)
    result["main"] = relax.Function(main.params, body, returned.ty, main.is_pure, main.attrs)
    return result
