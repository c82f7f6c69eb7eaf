"""Opens .onnx files: nothing sees a model before ONNX's own checker and shape inference have passed it.

TVM's importer trusts its input. A tensor of 10^12 elements keeps it busy for ever, a kernel larger than its input or an
unknown element type ends in an exception of any kind; all that is found here first, and said with the node's name.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tvm_sparse.conv.spec import MAX_ELEMENTS
from tvm_sparse.errors import MAX_QUOTE, ModelError, first_line
from tvm_sparse.frontend.batch import require_inputs
from tvm_sparse.frontend.onnx.external_data import load_external_data, require_readable
from tvm_sparse.frontend.onnx.graph.constants import constants_as_tensors
from tvm_sparse.frontend.onnx.mend import mend, refuse_shadows, require_few_nodes, shapes_filled
from tvm_sparse.frontend.optional_imports import onnx, require

_POOLS = ("AveragePool", "LpPool", "MaxPool")
_HINT = "export it again"
_SIZE_HINT = f"{_HINT}, or give inputs of the size that it was made for"


def load_onnx(path: Path) -> Any:
    """The checked `onnx.ModelProto` in `path`, external data included.

    ModelError where the file is damaged, breaks a rule of ONNX, is newer than the installed onnx, lacks a file of its
    data, or is too large.
    """
    decode_error = require("google.protobuf.message", "onnx").DecodeError
    require_readable(path, path.stat().st_size)
    try:
        model = onnx.load(path, load_external_data=False)
        load_external_data(path, model)
        mend(str(path), model)
        with shapes_filled(model):
            onnx.checker.check_model(model)
    except (decode_error, onnx.checker.ValidationError, ValueError, OSError) as error:
        raise ModelError(str(path), f"this is no valid ONNX model ({first_line(error)})", hint=_HINT) from None
    bad_name = next(_undecodable(model), None)
    if bad_name is not None:
        raise ModelError(str(path), "this is no valid ONNX model (a name is not UTF-8)", bad_name, hint=_HINT)
    newest = onnx.defs.onnx_opset_version()
    for opset in model.opset_import:
        if opset.domain in ("", "ai.onnx") and opset.version > newest:
            hint = "upgrade the onnx package, or export with an older opset_version"
            raise ModelError(str(path), "its operator set is unknown", opset.version, f"up to {newest}", hint)
    if not model.graph.output:
        raise ModelError(str(path), "the model has no output", hint=_HINT)
    if model.functions:
        # Of the model itself, such as torch's newer exporter writes; TVM knows operators only.
        require_few_nodes(str(path), model)
        model = onnx.inliner.inline_local_functions(model)
    refuse_shadows(str(path), model.graph)
    constants_as_tensors(str(path), model)
    return model


def _undecodable(message: Any) -> Iterator[bytes]:
    """Strings of a protobuf message that are not UTF-8; protobuf gives these as bytes, which nobody expects."""
    for field, value in message.ListFields():
        if field.type not in (field.TYPE_STRING, field.TYPE_MESSAGE):
            continue
        for each in [value] if isinstance(value, str | bytes) or hasattr(value, "ListFields") else value:
            if isinstance(each, bytes):
                yield each
            elif not isinstance(each, str):
                yield from _undecodable(each)


def fix_shapes(where: str, model: Any, shapes: Mapping[str, Sequence[int]], batch: int | None = None) -> None:
    """Write `shapes` into the inputs of an `onnx.ModelProto`; every dimension is then a number.

    With `batch` it becomes the first dimension of each input, whatever the file and `shapes` say. ModelError where an
    input is not named, has no tensor type, or keeps a dimension that is no positive number.
    """
    inputs = {value.name: value for value in model.graph.input}
    if not inputs:
        raise ModelError(where, "the model has no input", hint=_HINT)
    require_inputs(where, shapes, inputs)
    for value in (*inputs.values(), *model.graph.output):
        if not value.type.HasField("tensor_type"):
            kind, name = value.type.WhichOneof("value"), f"{'in' if value.name in inputs else 'out'}put {value.name}"
            raise ModelError(where, f"{name} is no tensor", kind, "a tensor", "change the model's inputs and outputs")
    for name, value in inputs.items():
        _fix_shape(where, name, value.type.tensor_type, shapes.get(name), batch)


def _fix_shape(where: str, name: str, kind: Any, wanted: Sequence[int] | None, batch: int | None) -> None:
    """Write the shape of an input into its `onnx.TypeProto.Tensor`."""
    dims = kind.shape.dim
    if wanted is not None and not kind.HasField("shape"):
        dims.extend(type(kind.shape).Dimension() for _ in wanted)
    elif not kind.HasField("shape"):
        raise ModelError(where, f"input {name} has no shape", hint=_open_shape_hint(name, ["?", 3, "?", "?"]))
    found = [dim.dim_value if dim.HasField("dim_value") else dim.dim_param or "?" for dim in dims]
    given = list(found if wanted is None else wanted)
    if batch is not None and found and given:
        found[0] = given[0] = batch
    if not all(isinstance(size, int) and size > 0 for size in given):
        hint = _open_shape_hint(name, found)
        raise ModelError(where, f"input {name} has no fixed shape", _shape_text(given), "positive numbers", hint)
    if len(given) != len(found) or any(isinstance(f, int) and f != g for f, g in zip(found, given, strict=True)):
        raise ModelError(where, f"input {name} cannot have this shape", _shape_text(given), _shape_text(found))
    for dim, size in zip(dims, given, strict=True):
        dim.dim_value = size


def _open_shape_hint(name: str, found: Sequence[int | str]) -> str:
    """How to say the shape of an input, on the command line and in Python; sizes that nobody knows are examples."""
    shape = [size if isinstance(size, int) and size > 0 else 224 if at > 1 else 1 for at, size in enumerate(found)]
    sizes, is_batch = ",".join(map(str, shape)), list(found[1:]) == shape[1:]
    flags = f"--batch 1 or --input-shape {name}:{sizes}" if is_batch else f"--input-shape {name}:{sizes}"
    python = f"shapes={{{name!r}: ({', '.join(map(str, shape))})}}"
    return f"give it as {flags}, in Python as {'batch=1 or ' if is_batch else ''}{python}"


def check_shapes(where: str, model: Any) -> dict[str, list[int]]:
    """Infer the shape of every tensor of an `onnx.ModelProto` whose input shapes are fixed; tensor name -> shape.

    Declared shapes of inner tensors and of outputs are dropped first: they may be from before the inputs were fixed. An
    unknown dimension is 0. ModelError where the shapes of an operator's inputs do not fit it or each other, or a tensor
    is larger than compiled code can index.
    """
    del model.graph.value_info[:]
    for value in model.graph.output:
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
    try:
        # Without values: ONNX would hold all numbers of a Range. `fold_nodes` has computed what shapes depend on.
        graph = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True).graph
    except (onnx.shape_inference.InferenceError, ValueError) as error:
        raise ModelError(where, f"its shapes do not fit ({_reason(error)})", hint=_SIZE_HINT) from None
    shapes = {tensor.name: list(tensor.dims) for tensor in model.graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        shapes[value.name] = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
    for name, shape in shapes.items():
        if min(shape, default=0) < 0:
            raise ModelError(where, f"tensor {name} has an impossible shape", _shape_text(shape), "sizes of 0 or more")
        if math.prod(shape) > MAX_ELEMENTS:
            found, allowed = f"{_shape_text(shape)}, {math.prod(shape)} elements", f"up to {MAX_ELEMENTS} elements"
            raise ModelError(where, f"tensor {name} is too large", found, allowed, "use a smaller input or batch")
    for node in model.graph.node:
        name, attributes = f"{where}, node {node.name or node.output[0]}", attributes_of(node)
        if node.domain not in ("", "ai.onnx"):
            continue
        if node.op_type == "Conv":
            _check_convolution(name, node, attributes, shapes)
        elif node.op_type in _POOLS and not attributes.get("ceil_mode"):
            # ONNX's inference rounds the sizes of outputs to zero, which makes one of a window that does not fit.
            _check_window(name, attributes.get("kernel_shape", ()), attributes, shapes.get(node.input[0], []))
    return shapes


def _check_convolution(name: str, node: Any, attributes: Mapping[str, Any], shapes: Mapping[str, list[int]]) -> None:
    """What strict inference lets pass: channels, groups, bias and kernel shape that do not fit the weight."""
    data, weight, *bias = (shapes.get(tensor, []) for tensor in node.input)
    groups = attributes.get("group", 1)
    if len(weight) < 3:
        return
    if groups < 1 or weight[0] % groups:
        raise ModelError(name, "filters do not split into the groups", groups, f"a divisor of {weight[0]}")
    if len(data) > 1 and data[1] and data[1] != weight[1] * groups:
        raise ModelError(name, "its input has another number of channels", data[1], f"{weight[1] * groups}", _HINT)
    if bias and bias[0] and bias[0] != [weight[0]]:
        raise ModelError(name, "its bias has another length", _shape_text(bias[0]), f"({weight[0]})", _HINT)
    kernel = list(attributes.get("kernel_shape", weight[2:]))
    if kernel != weight[2:]:
        found, allowed = _shape_text(kernel), _shape_text(weight[2:])
        raise ModelError(name, "kernel_shape is not its weight's", found, allowed, _HINT)
    _check_window(name, kernel, attributes, data)


def _check_window(name: str, kernel: Sequence[int], attributes: Mapping[str, Any], data: Sequence[int]) -> None:
    padded = _padded_sizes(data[2:], attributes)
    extents = [
        (size - 1) * dilation + 1
        for size, dilation in zip(kernel, attributes.get("dilations", [1] * len(kernel)), strict=True)
    ]
    if any(extent > size for extent, size in zip(extents, padded, strict=False)):
        raise ModelError(
            name, "its kernel is larger than its input", _shape_text(extents), f"up to {_shape_text(padded)}", _HINT
        )


def _padded_sizes(sizes: Sequence[int], attributes: Mapping[str, Any]) -> list[int]:
    """The sides of a convolution's input with its padding; none where they are not known, or as large as it takes."""
    if 0 in sizes or attributes.get("auto_pad", b"NOTSET").startswith(b"SAME"):
        return []
    pads = attributes.get("pads") or [0, 0] * len(sizes)
    return [size + pads[axis] + pads[len(sizes) + axis] for axis, size in enumerate(sizes)]


def attributes_of(node: Any) -> dict[str, Any]:
    """The attributes of an `onnx.NodeProto` by name."""
    return {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}


def _shape_text(shape: Sequence[int | str]) -> str:
    return f"({', '.join(map(str, shape))})"


def _reason(error: Exception) -> str:
    """What an inference error says, without the marks that ONNX puts before and between its parts."""
    text = str(error).replace("[ShapeInferenceError]", "").replace("Inference error(s):", "")
    return " ".join(text.split())[:MAX_QUOTE] or type(error).__name__
