"""Replace each layer and its fused epilogue by a call of the kernel chosen for it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import tvm
from tvm import relax
from tvm.ir import Expr, GlobalVar, Var

from tvm_sparse.frontend.passes.find_convolutions import ConvLayer, Group, WeightOf, find_groups
from tvm_sparse.frontend.passes.relax_graph import (
    Graph,
    constant_weight,
    is_call,
    is_float32,
    new_var,
    rebuild,
    static_shape,
)
from tvm_sparse.scheduling.kernel import Kernel

# How names of functions that compute layers begin.
PREFIX = "tvm_sparse"


def replace_convolutions(
    module: tvm.IRModule, kernels: Mapping[str, Kernel], weight_of: WeightOf = constant_weight, prefix: str = PREFIX
) -> tvm.IRModule:
    """`module` with the layers named in `kernels` computed by them; the others stay ordinary Relax operators.

    Layers are what `weight_of` has a weight for. Those that are given the same `Kernel` object share one function. Its
    name begins with `prefix`. A kernel of `pooled_cuda` takes the place of the layer's max pool too, and one that
    expands that of the layer before.
    """
    builder = relax.BlockBuilder(module)
    groups = find_groups(module, weight_of)
    before = {group.layer.feeds: group for group in groups}
    names = function_names([group.layer for group in groups], kernels, prefix)
    functions: dict[str, GlobalVar] = {}
    twins = _twins(module, groups, kernels)
    edits = _keeping(module, twins)
    for group in groups:
        kernel = kernels.get(group.layer.name)
        if kernel is None:
            continue
        name = names[group.layer.name]
        if name not in functions:
            functions[name] = builder.add_func(kernel.func.with_attr("global_symbol", name), name)
        is_whole = group.result in twins or _written_shape(kernel) == group.layer.spec.output_shape
        whole = group if is_whole else _with_pool(group)
        whole = _with_expansion(whole, before[group.layer.name]) if kernel.expands else whole
        edits.update({absorbed: [] for absorbed in whole.absorbed})
        edits[whole.result] = _bindings(builder.get(), functions[name], kernel, whole, twins)
    return rebuild(builder.get(), edits)


def function_names(layers: Sequence[ConvLayer], kernels: Mapping[str, Kernel], prefix: str = PREFIX) -> dict[str, str]:
    """Layer -> name of the function that computes it in the module `replace_convolutions` makes."""
    first: dict[int, str] = {}
    for position, layer in enumerate(layers):
        if layer.name in kernels:
            # The position tells layers apart whose names differ in punctuation only.
            name = f"{prefix}_{position}_{re.sub(r'[^A-Za-z0-9]+', '_', layer.name)}"
            first.setdefault(id(kernels[layer.name]), name)
    return {layer.name: first[id(kernels[layer.name])] for layer in layers if layer.name in kernels}


def kept_in_blocks(value: Expr) -> Sequence[Expr] | None:
    """The tensors that a max pool or a concatenation of channels reads, which keep their blocks there; else None."""
    if not isinstance(value, relax.Call) or not is_float32(value) or len(static_shape(value) or ()) != len("NCHW"):
        return None
    if is_call(value, "relax.nn.max_pool2d") and value.attrs.layout == "NCHW":
        return [value.args[0]]
    is_joined = is_call(value, "relax.concat") and int(value.attrs.axis) == 1 and isinstance(value.args[0], relax.Tuple)
    return list(value.args[0].fields) if is_joined else None


def _twins(module: tvm.IRModule, groups: Sequence[Group], kernels: Mapping[str, Kernel]) -> dict[Expr, Var]:
    """Results that lie in blocks of channels, as whatever reads them reads blocks, by what they stand for.

    What keeps the blocks of one has some too.
    """
    results = {group.result: kernels[group.layer.name] for group in groups if group.layer.name in kernels}
    twins: dict[Expr, Var] = {}
    for var, value in Graph.of(module).definitions.items():
        kept = [twins[each] for each in kept_in_blocks(value) or () if each in twins]
        if var in results and results[var].layouts.y:
            shape = _written_shape(results[var])
        elif kept:
            channels = int(kept[0].ty.shape[-1])
            n, k, *size = static_shape(var) or ()
            shape = (n, k // channels, *size, channels)
        else:
            continue
        twins[var] = new_var(module, var, f"{var.name}_blocks", shape)
    return twins


def _keeping(module: tvm.IRModule, twins: Mapping[Expr, Var]) -> dict[Var, list[tuple[Var, Expr]]]:
    """The max pools and concatenations of tensors in blocks."""
    edits: dict[Var, list[tuple[Var, Expr]]] = {}
    for var, value in Graph.of(module).definitions.items():
        read = kept_in_blocks(value)
        if var not in twins or read is None:
            continue
        sources, attrs = [twins[each] for each in read], value.attrs
        if is_call(value, "relax.concat"):
            kept = relax.op.concat(sources, axis=1)
        else:
            layout = f"NCHW{int(sources[0].ty.shape[-1])}c"
            window = (attrs.pool_size, attrs.strides, attrs.padding, attrs.dilation, attrs.ceil_mode)
            kept = relax.op.nn.max_pool2d(*sources, *window, attrs.count_include_pad, layout, layout)
        edits[var] = [(twins[var], kept)]
    return edits


def _bindings(
    module: tvm.IRModule, function: GlobalVar, kernel: Kernel, group: Group, twins: Mapping[Expr, Var]
) -> list[tuple[Var, Expr]]:
    """The call of `kernel` that computes the result of `group`, and views around it where shapes are not the spec's."""
    spec, result, bindings = group.layer.spec, group.result, list[tuple[Var, Expr]]()

    def shaped(value: Expr, shape: tuple[int, ...]) -> Expr:
        value = twins.get(value, value)
        if static_shape(value) == shape:
            return value
        view = new_var(module, result, f"{result.name}_in{len(bindings)}", shape, spec.dtype)
        bindings.append((view, _view(value, shape, spec.dtype)))
        return view

    arguments = [
        shaped(group.data, _shape(kernel.func.params[0])),
        *(relax.const(constant) for constant in kernel.constants),
    ]
    if group.layer.bias is not None:
        arguments.append(relax.const(group.layer.bias))
    if group.residual is not None:
        arguments.append(shaped(group.residual, _shape(kernel.func.params[len(arguments)])))
    written = _written_shape(kernel)
    call = relax.call_tir(function, relax.Tuple(arguments), relax.TensorType(written, spec.dtype))
    if result in twins or static_shape(result) == written:
        return [*bindings, (twins.get(result, result), call)]
    output = new_var(module, result, f"{result.name}_out", written, spec.dtype)
    return [*bindings, (output, call), (result, _view(output, result.ty.shape, spec.dtype))]


def _with_pool(group: Group) -> Group:
    assert group.pool is not None, "a kernel that pools is chosen where there is a pool"
    return replace(group, absorbed=(*group.absorbed, group.result), result=group.pool)


def _with_expansion(group: Group, expansion: Group) -> Group:
    return replace(group, data=expansion.data, absorbed=(*expansion.absorbed, expansion.result, *group.absorbed))


def _written_shape(kernel: Kernel) -> tuple[int, ...]:
    """Of what a kernel writes: the convolution's output, or that of the pool behind it."""
    return _shape(kernel.func.params[-1])


def _shape(parameter: Var) -> tuple[int, ...]:
    return tuple(int(size) for size in parameter.ty.shape)


def _view(value: Expr, shape: Any, dtype: str) -> Expr:
    """`value` with another shape, in place: a reshape that Relax fuses with another, or returns, it computes."""
    return relax.op.memory.view(value, shape, dtype, 0)
