"""Settle those checks of indices that turned out to be of constants; the others' bounds become one result."""

from collections.abc import Sequence

import tvm
from tvm import relax
from tvm.ir import Expr, GenericConst, Var

from tvm_sparse.conv.index_check import IndexCheck
from tvm_sparse.frontend.passes.indices.guard_indices import require_in_range
from tvm_sparse.frontend.passes.indices.main_results import results_of, with_results
from tvm_sparse.frontend.passes.relax_graph import Graph


def settle_checks(module: tvm.IRModule, checks: Sequence[IndexCheck]) -> tuple[tvm.IRModule, list[IndexCheck]]:
    """`module`, with one result behind its own for all `checks` that are left; run it when constants are computed.

    That result is int64 (`total_size`,); there is none where no check is left. ModelError where a constant index is out
    of range.
    """
    if not checks:
        return module, []
    module = relax.transform.ToNonDataflow()(module)
    builder, main = relax.BlockBuilder(module), module["main"]
    definitions = Graph.of(module).definitions
    bindings = [binding for block in main.body.blocks for binding in block.bindings]

    def bind(value: Expr) -> Var:
        value = builder.normalize(value)
        var = relax.Var(f"bounds{len(bindings)}", value.ty)
        bindings.append(relax.VarBinding(var, value))
        return var

    results = results_of(main.body.body, definitions, bind)
    own, bounds = results[: -len(checks)], results[-len(checks) :]
    left = []
    for check, found in zip(checks, bounds, strict=True):
        value = definitions.get(found, found)
        if isinstance(value, GenericConst):
            require_in_range(check, value.value.numpy().tolist())
        else:
            left.append((check, found))
    if left:
        vectors = [found for _, found in left]
        own.append(bind(relax.op.concat(vectors, 0)) if len(vectors) > 1 else vectors[0])
    passes = [relax.transform.ConvertToDataflow(), relax.transform.DeadCodeElimination(["main"])]
    settled = with_results(module, bindings, own)
    return tvm.transform.Sequential(passes)(settled), [check for check, _ in left]
