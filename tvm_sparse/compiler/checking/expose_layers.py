"""Make a model also return what goes into each of its convolutions and what comes out, so that each can be checked."""

from dataclasses import dataclass

import tvm
from tvm import relax
from tvm.ir import Expr, Var

from tvm_sparse.frontend.passes.find_convolutions import find_groups
from tvm_sparse.frontend.passes.relax_graph import Graph


@dataclass(frozen=True)
class Places:
    """Where among the outputs the data, residual and result of one convolution are; None for a constant or nothing."""

    data: int | None
    residual: int | None
    result: int


def expose(module: tvm.IRModule) -> tuple[tvm.IRModule, list[Places]]:
    """`module` with more outputs behind its own, flattened to one tuple, and where each convolution's tensors are.

    The same convolutions are found in the result, with the same epilogues: what is exposed begins or ends one.
    """
    module = relax.transform.ToNonDataflow()(module)
    main = module["main"]
    unpacked: list[relax.VarBinding] = []
    outputs = _flatten(main.body.body, unpacked)
    places: dict[Var, int] = {}

    def place(value: Expr | None) -> int | None:
        if not isinstance(value, Var):
            return None
        if value not in places:
            places[value] = len(outputs)
            outputs.append(value)
        return places[value]

    found = []
    for group in find_groups(Graph.of(module)):
        result = place(group.result)
        assert result is not None, "a result is bound to a variable"
        found.append(Places(place(group.data), place(group.residual), result))
    body = relax.SeqExpr([*main.body.blocks, relax.BindingBlock(unpacked)], relax.Tuple(outputs))
    result_type = relax.TupleType([output.ty for output in outputs])
    module["main"] = relax.Function(main.params, body, result_type, main.is_pure, main.attrs)
    return relax.transform.ConvertToDataflow()(module), found


def _flatten(value: Expr, bindings: list[relax.VarBinding]) -> list[Expr]:
    """The outputs in `value`; binds the elements of a tuple."""
    if not isinstance(value.ty, relax.TupleType):
        return [value]
    elements = []
    for index, kind in enumerate(value.ty.fields):
        element = relax.Var(f"output{index}", kind)
        bindings.append(relax.VarBinding(element, relax.TupleGetItem(value, index)))
        elements.append(element)
    return elements
