"""Replace each convolution and its fused epilogue by a call of the kernel chosen for it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

import tvm
from tvm import relax
from tvm.ir import Expr, GlobalVar, Var

from tvm_sparse.passes.find_convolutions import Group, find_groups
from tvm_sparse.passes.graph import rebuild

if TYPE_CHECKING:
    from tvm_sparse.space import Kernel


def replace_convolutions(module: tvm.IRModule, kernels: Mapping[str, Kernel]) -> tvm.IRModule:
    """`module` with the layers named in `kernels` computed by them; the others stay ordinary Relax operators.

    Layers that are given the same `Kernel` object share one function.
    """
    builder = relax.BlockBuilder(module)
    functions: dict[int, GlobalVar] = {}
    edits: dict[Var, list[tuple[Var, Expr]]] = {}
    for group in find_groups(module):
        kernel = kernels.get(group.layer.name)
        if kernel is None:
            continue
        if id(kernel) not in functions:
            name = "tvm_sparse_" + re.sub(r"\W", "_", group.layer.name)
            functions[id(kernel)] = builder.add_func(kernel.func.with_attr("global_symbol", name), name)
        edits.update({absorbed: [] for absorbed in group.absorbed})
        edits[group.result] = [(group.result, _call(functions[id(kernel)], kernel, group))]
    return rebuild(builder.get(), edits)


def _call(function: GlobalVar, kernel: Kernel, group: Group) -> Expr:
    arguments = [group.data, *(relax.const(constant) for constant in kernel.constants)]
    if group.layer.bias is not None:
        arguments.append(relax.const(group.layer.bias))
    if group.residual is not None:
        arguments.append(group.residual)
    return relax.call_tir(function, relax.Tuple(arguments), relax.TensorType(group.layer.spec.output_shape, "float32"))
