"""Rewrites what TVM's importer reads wrongly, or makes slow code of, as other nodes of ONNX."""

from collections.abc import Mapping, Sequence
from typing import Any

from tvm_sparse.errors import ModelError, first_line
from tvm_sparse.frontend.onnx_constants import ONNX_DOMAINS, opset_of
from tvm_sparse.frontend.onnx_model import attributes_of
from tvm_sparse.frontend.optional_imports import require

# Operators whose first forms TVM does not read, and the first version of which it reads all.
_OLD = ("Resize", "Slice", "Upsample")
_READ_OPSET = 11
_PADDED = ("Conv", "MaxPool", "AveragePool")


def upgrade_operators(where: str, model: Any) -> bool:
    """Convert an `onnx.ModelProto` with old operators that TVM does not read, in place; whether it was one.

    Raises
    ------
    ModelError
        ONNX's converter does not know the way for one of the operators.
    """
    is_old = any(node.op_type in _OLD and node.domain in ONNX_DOMAINS for node in model.graph.node)
    if opset_of(model) >= _READ_OPSET or not is_old:
        return False
    converter = require("onnx.version_converter", "onnx")
    try:
        model.CopyFrom(converter.convert_version(model, _READ_OPSET))
    except (converter.ConvertError, RuntimeError, ValueError) as error:
        problem = f"its operators cannot be converted to opset {_READ_OPSET} ({first_line(error)})"
        raise ModelError(where, problem, opset_of(model), hint="export it with opset_version=13 or newer") from error
    return True


def make_padding_explicit(model: Any, shapes: Mapping[str, list[int]]) -> None:
    """Replace ``auto_pad`` of each Conv and pooling by ``pads``.

    TVM imports the former of a Conv as a separate padded copy of the input, and of a pooling wrongly.
    """
    onnx = require("onnx", "onnx")
    for node in model.graph.node:
        attributes = attributes_of(node)
        mode = attributes.get("auto_pad", b"NOTSET")
        if node.op_type not in _PADDED or node.domain not in ONNX_DOMAINS or mode not in (b"SAME_UPPER", b"SAME_LOWER"):
            continue
        sizes = shapes.get(node.input[0], [])[2:]
        kernel = attributes.get("kernel_shape") or shapes.get(node.input[1], [])[2:]
        if len(sizes) != 2 or len(kernel) != 2 or 0 in sizes:
            continue
        kept = [a for a in node.attribute if a.name != "auto_pad"]
        del node.attribute[:]
        node.attribute.extend(kept)
        small, large = _halves(sizes, kernel, attributes)
        pads = small + large if mode == b"SAME_UPPER" else large + small
        node.attribute.append(onnx.helper.make_attribute("pads", pads))


def _halves(sizes: Sequence[int], kernel: Sequence[int], attributes: Mapping[str, Any]) -> tuple[list[int], list[int]]:
    """The padding of each axis that makes the output as large as the input by the stride, in two halves."""
    strides, dilations = attributes.get("strides", [1, 1]), attributes.get("dilations", [1, 1])
    totals = [
        max((-(-size // stride) - 1) * stride + (extent - 1) * dilation + 1 - size, 0)
        for size, extent, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True)
    ]
    return [total // 2 for total in totals], [total - total // 2 for total in totals]
