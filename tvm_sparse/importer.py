"""Model file or object -> Relax module whose parameters are constants.

Parameters become constants at import, never function arguments: TVM's ``keep_params_as_input`` loses the masks of
`torch.nn.utils.prune`, and folding weights needs their values anyway.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tvm
from tvm import relax, tirx

from tvm_sparse.errors import ModelError
from tvm_sparse.weights import (
    MODEL_SUFFIXES,
    existing_file,
    is_exported_program,
    is_torch_module,
    load_onnx,
    require,
)

# TVM's front ends report a model they cannot convert by any of these.
_FRONTEND_ERRORS = (
    RuntimeError,
    NotImplementedError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    AssertionError,
)
# Operators that behave otherwise in training -> position of the argument that says so.
_TRAINING_ARGUMENT = {"aten.batch_norm.default": 5, "aten.dropout.default": 2}


def import_model(
    source: Any, example_inputs: Any = None, shapes: Mapping[str, Sequence[int]] | None = None
) -> tvm.IRModule:
    """A Relax module with one function ``main(inputs...)``, every shape known.

    Parameters
    ----------
    source
        Path of an ``.onnx`` or ``.pt2`` file, `torch.nn.Module` in evaluation mode, or `torch.export.ExportedProgram`.
    example_inputs
        For a module only: the tensor, or tuple of tensors, it is called with.
    shapes
        For ONNX only: input name -> shape, for the inputs whose shape the file leaves open.

    Raises
    ------
    ModelError
        The source is missing, damaged, has an operator TVM does not know, or leaves a shape open.
    """
    if is_torch_module(source):
        return _from_torch("model", _export(source, example_inputs))
    if is_exported_program(source):
        return _from_torch("model", source)
    path = existing_file(source, MODEL_SUFFIXES)
    if path.suffix == ".onnx":
        return _from_onnx(path, shapes or {})
    require("torch", "torch")
    from tvm_sparse.pt2 import load_exported_program

    return _from_torch(str(path), load_exported_program(path))


def _export(module: Any, example_inputs: Any) -> Any:
    import torch

    if module.training:
        raise ModelError("model", "it is in training mode", hint="call model.eval() first")
    if example_inputs is None:
        raise ModelError(
            "model", "a torch module needs example inputs", hint="pass example_inputs=(torch.zeros(1, 3, 224, 224),)"
        )
    inputs = (example_inputs,) if isinstance(example_inputs, torch.Tensor) else tuple(example_inputs)
    try:
        with torch.no_grad(), _quiet():
            return torch.export.export(module, inputs)
    except _FRONTEND_ERRORS as error:
        problem = f"torch.export cannot trace it ({_first_line(error)})"
        raise ModelError("model", problem, hint="see docs.pytorch.org/docs/stable/export.html") from error


def _from_torch(where: str, program: Any) -> tvm.IRModule:
    from tvm.relax.frontend.torch import from_exported_program

    for node in program.graph.nodes:
        position = _TRAINING_ARGUMENT.get(str(node.target))
        if position is not None and node.args[position]:
            hint = "call model.eval() before torch.export.export"
            raise ModelError(where, f"{node.name} was exported in training mode", hint=hint)
    with _frontend(where):
        module = from_exported_program(program, unwrap_unit_return_tuple=True)
    return _with_known_shapes(where, module)


def _from_onnx(path: Path, shapes: Mapping[str, Sequence[int]]) -> tvm.IRModule:
    from tvm.relax.frontend.onnx import from_onnx

    model = load_onnx(path)
    _fix_shapes(str(path), model, shapes)
    _make_padding_explicit(model)
    with _frontend(str(path)):
        module = from_onnx(model, keep_params_in_input=False)
    return _with_known_shapes(str(path), module)


def _fix_shapes(where: str, model: Any, shapes: Mapping[str, Sequence[int]]) -> None:
    """Write `shapes` into the inputs of an `onnx.ModelProto`; every dimension is then a number."""
    constants = {tensor.name for tensor in model.graph.initializer}
    inputs = {value.name: value for value in model.graph.input if value.name not in constants}
    unknown = sorted(set(shapes) - set(inputs))
    if unknown:
        raise ModelError(where, "no such input", ", ".join(unknown), ", ".join(inputs))
    for name, value in inputs.items():
        dims = value.type.tensor_type.shape.dim
        found = [dim.dim_value if dim.HasField("dim_value") else dim.dim_param or "?" for dim in dims]
        given = list(shapes.get(name, found))
        if not all(isinstance(size, int) and size > 0 for size in given):
            hint = f"give it as shapes={{{name!r}: (1, ...)}}"
            raise ModelError(where, f"input {name} has no fixed shape", _shape_text(given), "positive numbers", hint)
        if len(given) != len(found) or any(isinstance(f, int) and f != g for f, g in zip(found, given, strict=True)):
            raise ModelError(where, f"input {name} cannot have this shape", _shape_text(given), _shape_text(found))
        for dim, size in zip(dims, given, strict=True):
            dim.dim_value = size
    # Shapes inferred before this were inferred from open dimensions.
    del model.graph.value_info[:]


def _shape_text(shape: Sequence[int | str]) -> str:
    return f"({', '.join(map(str, shape))})"


def _make_padding_explicit(model: Any) -> None:
    """Replace ``auto_pad`` of each Conv by ``pads``: TVM imports the former as a separate padded copy of the input."""
    onnx = require("onnx", "onnx")
    inferred = require("onnx.shape_inference", "onnx").infer_shapes(model).graph
    shapes = {
        value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in (*inferred.input, *inferred.value_info)
    }
    weights = {tensor.name: list(tensor.dims) for tensor in model.graph.initializer}
    for node in model.graph.node:
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        mode = attributes.get("auto_pad", b"NOTSET")
        if node.op_type != "Conv" or mode not in (b"SAME_UPPER", b"SAME_LOWER"):
            continue
        sizes, kernel = shapes.get(node.input[0], [])[2:], weights.get(node.input[1], [])[2:]
        if len(sizes) != 2 or len(kernel) != 2 or 0 in sizes:
            continue
        strides, dilations = attributes.get("strides", [1, 1]), attributes.get("dilations", [1, 1])
        totals = [
            max((-(-size // stride) - 1) * stride + (extent - 1) * dilation + 1 - size, 0)
            for size, extent, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True)
        ]
        small, large = [total // 2 for total in totals], [total - total // 2 for total in totals]
        kept = [a for a in node.attribute if a.name != "auto_pad"]
        del node.attribute[:]
        node.attribute.extend(kept)
        pads = small + large if mode == b"SAME_UPPER" else large + small
        node.attribute.append(onnx.helper.make_attribute("pads", pads))


def _with_known_shapes(where: str, module: tvm.IRModule) -> tvm.IRModule:
    for parameter in module["main"].params:
        shape = getattr(parameter.ty, "shape", None)
        if not isinstance(shape, relax.ShapeExpr) or not all(isinstance(size, tirx.IntImm) for size in shape.values):
            hint = "export it without dynamic_shapes, once for each batch size"
            raise ModelError(where, f"input {parameter.name} has no fixed shape", parameter.ty, hint=hint)
    return module


@contextlib.contextmanager
def _frontend(where: str) -> Iterator[None]:
    """Run a TVM front end: no chatter, and one sentence for whatever it cannot convert."""
    try:
        with _quiet():
            yield
    except _FRONTEND_ERRORS as error:
        problem = f"TVM cannot import it ({_first_line(error)})"
        raise ModelError(where, problem, hint="replace that operator in the model") from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Drop warnings about names, and the failing operator's inputs that TVM prints before it raises."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
