"""Replace each layer and its fused epilogue by a call of the kernel chosen for it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import tvm
from tvm import relax
from tvm.ir import Expr, GlobalVar, Var
from tvm.target import Target

from tvm_sparse.compiler.layouts.byte_bindings import byte_bindings, byte_twins, steps_between
from tvm_sparse.compiler.layouts.byte_products import byte_products
from tvm_sparse.compiler.layouts.byte_tensors import ByteLayer
from tvm_sparse.compiler.layouts.keep_blocks import Kept, kept_in_blocks, on_blocks
from tvm_sparse.conv.nchwc import Layouts
from tvm_sparse.frontend.passes.find_convolutions import ConvLayer, Group, find_groups
from tvm_sparse.frontend.passes.ranks.moves import with_ends
from tvm_sparse.frontend.passes.relax_graph import Graph, is_call, new_var, rebuild, static_shape, view
from tvm_sparse.scheduling.argument_views import shape_of
from tvm_sparse.scheduling.cpu.byte_unit import ByteUnit
from tvm_sparse.scheduling.kernel import Kernel

# How names of functions that compute layers begin.
PREFIX = "tvm_sparse"


def replace_convolutions(
    module: tvm.IRModule,
    kernels: Mapping[str, Kernel],
    groups: Sequence[Group] | None = None,
    prefix: str = PREFIX,
    of_bytes: Mapping[str, ByteLayer] | None = None,
    target: Target | None = None,
) -> tvm.IRModule:
    """`module` with the layers named in `kernels` computed by them; the others stay ordinary Relax operators.

    `groups` are the layers of `module`; None: its convolutions and sparse linear layers. Those that are given the same
    `Kernel` object share one function. Its name begins with `prefix`. A kernel that pools or interleaves takes the
    place of what does that behind the layer too, and one that expands that of the layer before. Layers `of_bytes` read
    bytes, of which `target` computes what lies between them too.
    """
    builder, graph = relax.BlockBuilder(module), Graph.of(module)
    of_bytes = of_bytes or {}
    groups = find_groups(graph) if groups is None else groups
    groups = [of_bytes[each.layer.name].group if each.layer.name in of_bytes else each for each in groups]
    before = {group.layer.feeds: group for group in groups}
    names = function_names([group.layer for group in groups], kernels, prefix)
    functions: dict[str, GlobalVar] = {}
    kept = kept_in_blocks(graph, groups)
    twins = _twins(module, graph, groups, kernels, kept)
    edits = on_blocks(module, kept, twins)
    steps = steps_between(graph, of_bytes, target) if target is not None else {}
    twins |= byte_twins(module, of_bytes, steps)
    for group in groups:
        kernel = kernels.get(group.layer.name)
        if kernel is None:
            continue
        name = names[group.layer.name]
        for own, part in zip(names_of_parts(name, kernel), kernel.all, strict=True):
            if own not in functions:
                functions[own] = builder.add_func(part.func.with_attr("global_symbol", own), own)
        is_whole = group.result in twins or _written_shape(kernel) == group.layer.spec.output_shape
        whole = group if is_whole else _with_next(group)
        whole = _with_expansion(whole, before[group.layer.name]) if kernel.expands else whole
        whole = _on_maps(whole) if kernel.volumes is not None and group.maps is not None else whole
        edits.update({absorbed: [] for absorbed in whole.absorbed})
        own_functions = [functions[each] for each in names_of_parts(name, kernel)]
        edits[whole.result] = _bindings(builder, own_functions, kernel, whole, twins)
        if whole.result not in twins:
            edits.update(_returned(graph, whole.result))
    unit = ByteUnit.of(target) if of_bytes and target is not None else None
    if unit is not None:
        edits |= byte_bindings(builder, graph, of_bytes, steps, twins, edits)
        edits |= byte_products(builder, graph, groups, unit)
    return rebuild(builder.get(), edits)


def _returned(graph: Graph, result: Var) -> dict[Var, list[tuple[Var, Expr]]]:
    """What returns `result` in another shape, such as a line that was computed as a map, without a copy of it."""
    found = (each for each in graph.users[result] if each in graph.returned)
    shaped = (each for each in found if is_call(graph.definitions[each], "relax.reshape") and static_shape(each))
    return {each: [(each, view(result, each.ty.shape))] for each in shaped}


def function_names(layers: Sequence[ConvLayer], kernels: Mapping[str, Kernel], prefix: str = PREFIX) -> dict[str, str]:
    """Layer -> name of the function that computes it in the module `replace_convolutions` makes."""
    first: dict[int, str] = {}
    for position, layer in enumerate(layers):
        if layer.name in kernels:
            # The position tells layers apart whose names differ in punctuation only.
            name = f"{prefix}_{position}_{re.sub(r'[^A-Za-z0-9]+', '_', layer.name)}"
            first.setdefault(id(kernels[layer.name]), name)
    return {layer.name: first[id(kernels[layer.name])] for layer in layers if layer.name in kernels}


def names_of_parts(name: str, kernel: Kernel) -> list[str]:
    """Names of the functions of all kernels that compute a layer one after the other, the last of which has `name`."""
    return [*(f"{name}_part{number}" for number in range(len(kernel.before))), name]


def _twins(
    module: tvm.IRModule,
    graph: Graph,
    groups: Sequence[Group],
    kernels: Mapping[str, Kernel],
    kept: Mapping[Var, Kept],
) -> dict[Expr, Var]:
    """Results that lie in blocks of channels, as whatever reads them reads blocks, by what they stand for.

    What keeps the blocks of one has some too.
    """
    results = {group.result: kernels[group.layer.name] for group in groups if group.layer.name in kernels}
    twins: dict[Expr, Var] = {}
    for var in graph.definitions:
        if var in results and results[var].layouts.y:
            shape = _written_shape(results[var])
        elif var in kept and kept[var].writes and kept[var].reads[0] in twins:
            channels = int(twins[kept[var].reads[0]].ty.shape[-1])
            n, c, h, w = static_shape(var) or ()
            shape = Layouts(channels, y=True).shape("y", (n, c, h, w))
        else:
            continue
        twins[var] = new_var(module, var, f"{var.name}_blocks", shape)
    return twins


def _bindings(
    builder: relax.BlockBuilder, functions: Sequence[GlobalVar], kernel: Kernel, group: Group, twins: Mapping[Expr, Var]
) -> list[tuple[Var, Expr]]:
    """The calls of `kernel` that compute the result of `group`, and views around them where shapes are not the spec's.

    `functions` are those of ``kernel.all``.
    """
    module, spec, result, bindings = builder.get(), group.layer.spec, group.result, list[tuple[Var, Expr]]()
    data, read, volumes = group.data, shape_of(kernel.func.params[0]), group.layer.volumes
    if kernel.volumes is not None and volumes is not None and static_shape(data) != read:
        data = new_var(module, result, f"{result.name}_maps", read)
        move = partial(with_ends, volumes=volumes)
        bindings.append((data, builder.call_te(move, group.data, primfunc_name_hint=with_ends.__name__)))

    def as_shape(value: Expr, shape: tuple[int, ...]) -> Expr:
        # A tensor of bytes is for kernels that read these.
        found = next((each for each in (twins.get(value, value), value) if static_shape(each) == shape), None)
        if found is not None:
            return found
        shaped = new_var(module, result, f"{result.name}_in{len(bindings)}", shape, spec.dtype)
        bindings.append((shaped, view(value, shape)))
        return shaped

    def call_of(part: Kernel, function: GlobalVar, residual: Expr | None) -> Expr:
        arguments = [as_shape(data, read), *(relax.const(constant) for constant in part.constants)]
        if group.layer.bias is not None and part is kernel:
            arguments.append(relax.const(kernel.layouts.laid_out("bias", group.layer.bias)))
        if residual is not None:
            arguments.append(as_shape(residual, shape_of(part.func.params[len(arguments)])))
        kind = relax.TensorType(_written_shape(part), str(part.func.params[-1].ty.dtype))
        return relax.call_tir(function, relax.Tuple(arguments), kind)

    added = group.residual
    for part, function in zip(kernel.before, functions, strict=False):
        value = call_of(part, function, added)
        added = new_var(module, result, f"{function.name_hint}_sum", _written_shape(part), spec.dtype)
        bindings.append((added, value))
    call, written = call_of(kernel, functions[-1], added), _written_shape(kernel)
    if result in twins or static_shape(result) == written:
        return [*bindings, (twins.get(result, result), call)]
    output = new_var(module, result, f"{result.name}_out", written, spec.dtype)
    return [*bindings, (output, call), (result, view(output, result.ty.shape))]


def _with_next(group: Group) -> Group:
    assert group.behind is not None, "a kernel that pools or interleaves is chosen where that is behind the layer"
    return replace(group, absorbed=(*group.absorbed, group.result), result=group.behind)


def _with_expansion(group: Group, expansion: Group) -> Group:
    return replace(group, data=expansion.data, absorbed=(*expansion.absorbed, expansion.result, *group.absorbed))


def _on_maps(group: Group) -> Group:
    data = group.data
    assert isinstance(data, Var) and group.maps is not None
    return replace(group, data=group.maps, absorbed=(data, *group.absorbed))


def _written_shape(kernel: Kernel) -> tuple[int, ...]:
    """Of what a kernel writes: the convolution's output, or that of what it computes behind it."""
    return shape_of(kernel.func.params[-1])
