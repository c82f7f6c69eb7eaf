"""Bytes in the place of tensors of codes, in a network whose layers are replaced: what else its bindings become."""

from collections.abc import Mapping

import tvm
from tvm import relax, tirx
from tvm.ir import Call, Expr, Var
from tvm.target import Target

from tvm_sparse.compiler.layouts.byte_steps import ByteStep, byte_steps, code_bounds
from tvm_sparse.compiler.layouts.byte_tensors import ByteLayer
from tvm_sparse.compiler.layouts.byte_values import image_shape
from tvm_sparse.conv.byte_form import fours_shape
from tvm_sparse.frontend.passes.relax_graph import (
    Graph,
    channel_vector,
    has_effect,
    is_call,
    new_var,
    static_shape,
    view,
)
from tvm_sparse.scheduling.cpu.byte_copies import Rounding, from_bytes, to_bytes
from tvm_sparse.scheduling.cpu.byte_vectors import INT32

Bindings = list[tuple[Var, Expr]]


def steps_between(graph: Graph, of_bytes: Mapping[str, ByteLayer], target: Target) -> dict[Var, ByteStep]:
    """What is computed of bytes between layers, by the variables that it is in `graph`."""
    return byte_steps(graph, _written(of_bytes), _read(of_bytes), target) if of_bytes else {}


def byte_twins(
    module: tvm.IRModule, of_bytes: Mapping[str, ByteLayer], steps: Mapping[Var, ByteStep]
) -> dict[Expr, Var]:
    """The variables that stand, as bytes, for tensors of codes that are read or written so."""
    tensors = dict.fromkeys([*(each.group.data for each in of_bytes.values()), *_written(of_bytes), *steps])
    shapes = {each: fours_shape(image_shape(each) or ()) for each in tensors}
    return {each: new_var(module, each, f"{each.name}_bytes", shape, INT32) for each, shape in shapes.items()}


def byte_bindings(
    builder: relax.BlockBuilder,
    graph: Graph,
    of_bytes: Mapping[str, ByteLayer],
    steps: Mapping[Var, ByteStep],
    twins: Mapping[Expr, Var],
    edits: Mapping[Var, Bindings],
) -> dict[Var, Bindings]:
    """The `edits` of `steps`, of codes that no layer writes as bytes, and of those that others read."""
    written, read = _written(of_bytes) | {var: step.least for var, step in steps.items()}, _read(of_bytes)
    readers = {var for each in of_bytes.values() for var in each.readers} | steps.keys()
    found: dict[Var, Bindings] = {}
    # From the last on: what is read, as floats or as bytes; what is not, others read in another form.
    effects = {var for var, value in graph.definitions.items() if has_effect(value)}
    floats, bytes_ = set[Expr](graph.returned | effects), set[Expr](read)
    for var in reversed(graph.definitions):
        if var in steps:
            found[var] = []
            if var in bytes_ or var in floats:
                step = steps[var]
                arguments = [*(twins[each] for each in step.sources), *map(relax.const, step.constants)]
                found[var] = [_computed(builder, step.func, twins[var], *arguments)]
                bytes_.update(step.sources)
        elif var in read and var not in written:
            source, rounding = (None if var in floats else _rounded(graph, var)) or (var, None)
            copy = _computed(builder, to_bytes(static_shape(var) or (), read[var], rounding), twins[var], source)
            found[var] = [copy] if rounding else [*edits.get(var, [(var, graph.definitions[var])]), copy]
            floats.add(source)
        elif var not in floats and var not in readers:
            found[var] = []
        if var in written and var in floats:
            found[var] = [*found.get(var, edits.get(var, [])), *_as_floats(builder, var, written[var], twins[var])]
        if var in floats and var not in readers:
            floats.update(relax.analysis.free_vars(graph.definitions[var]))
    return found


def _as_floats(builder: relax.BlockBuilder, var: Var, least: int, twin: Var) -> Bindings:
    shape = image_shape(var) or ()
    func = from_bytes(shape, least)
    if static_shape(var) == shape:
        return [_computed(builder, func, var, twin)]
    image = new_var(builder.get(), var, f"{var.name}_image", shape)
    return [_computed(builder, func, image, twin), (var, view(image, var.ty.shape))]


def _read(of_bytes: Mapping[str, ByteLayer]) -> dict[Expr, int]:
    return {each.group.data: each.group.layer.spec.least for each in of_bytes.values()}


def _written(of_bytes: Mapping[str, ByteLayer]) -> dict[Var, int]:
    return {each.group.result: each.form.least for each in of_bytes.values() if each.form.stages}


def _computed(builder: relax.BlockBuilder, func: tirx.PrimFunc, target: Var, *arguments: Expr) -> tuple[Var, Expr]:
    name = f"tvm_sparse_{target.name}"
    function = builder.add_func(func.with_attr("global_symbol", name), name)
    return target, relax.call_tir(function, [*arguments], target.ty)


def _rounded(graph: Graph, data: Expr) -> tuple[Expr, Rounding] | None:
    """What the codes `data` are of, and how, where nothing else reads what is in between."""
    clip = graph.definitions[data]
    bounds = code_bounds(clip) if isinstance(clip, Call) else None
    if bounds is None:
        return None
    rounded = clip.args[0]
    rounding = graph.definitions.get(rounded)
    divided = rounding.args[0] if rounding is not None and is_call(rounding, "relax.round") else None
    value = graph.definitions.get(divided)
    is_read_elsewhere = any(each is None or graph.only_user(each) is None for each in (rounded, divided))
    divides = value is not None and is_call(value, "relax.divide")
    if value is None or not (divides or is_call(value, "relax.multiply")) or is_read_elsewhere:
        return None
    scale = channel_vector(value.args[1], (1, 1, 1, 1))
    return None if scale is None else (value.args[0], Rounding(float(scale[0]), *bounds, divides))
