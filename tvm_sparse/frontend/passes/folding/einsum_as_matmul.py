"""Write products of tensors that a model has as Einstein sums, as attention does, as matrix products."""

import tvm
from tvm import relax
from tvm.ir import Expr, Var

from tvm_sparse.frontend.onnx.rewriting.einsum import Product, product_of
from tvm_sparse.frontend.passes.relax_graph import Graph, is_call, new_var, rebuild, static_shape


def einsum_as_matmul(module: tvm.IRModule) -> tvm.IRModule:
    """`module` with each ``einsum`` that is a product of two matrices, or of stacks of them, as ``matmul``."""
    edits: dict[Var, list[tuple[Var, Expr]]] = {}
    for var, value in Graph.of(module).definitions.items():
        product = product_of(str(value.attrs.subscripts)) if is_call(value, "relax.einsum") else None
        if product is not None and all(map(static_shape, value.args[0].fields)):
            edits[var] = _as_matmul(module, var, value.args[0].fields, product)
    return rebuild(module, edits)


def _as_matmul(module: tvm.IRModule, var: Var, factors: list[Expr], product: Product) -> list[tuple[Var, Expr]]:
    """Bindings whose last one is `var`."""
    before: list[tuple[Var, Expr]] = []
    axes, operands = product.swapped_axes, list(factors)
    for index, is_swapped in enumerate(product.swaps):
        if is_swapped:
            shape = static_shape(operands[index]) or ()
            swapped = new_var(module, var, f"{var.name}_swapped", [shape[i] for i in axes], str(var.ty.dtype))
            before.append((swapped, relax.op.permute_dims(operands[index], axes)))
            operands[index] = swapped
    return [*before, (var, relax.op.matmul(*operands))]
