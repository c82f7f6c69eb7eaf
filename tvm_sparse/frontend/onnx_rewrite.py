"""Rewrites what TVM's importer reads wrongly, or makes slow code of, as other nodes of ONNX."""

from collections.abc import Mapping
from typing import Any

from tvm_sparse.errors import ModelError, first_line
from tvm_sparse.frontend.onnx_constants import ONNX_DOMAINS, opset_of
from tvm_sparse.frontend.onnx_model import attributes_of
from tvm_sparse.frontend.optional_imports import require

# The first version whose resizing TVM reads: before, it looks for sizes that are not there.
_RESIZE_OPSET = 11


def upgrade_resizing(where: str, model: Any) -> bool:
    """Convert an `onnx.ModelProto` that resizes as old operators do, in place, to newer ones; whether it was one.

    Raises
    ------
    ModelError
        ONNX's converter does not know the way for one of the operators.
    """
    resizes = any(node.op_type in ("Resize", "Upsample") and node.domain in ONNX_DOMAINS for node in model.graph.node)
    if opset_of(model) >= _RESIZE_OPSET or not resizes:
        return False
    converter = require("onnx.version_converter", "onnx")
    try:
        model.CopyFrom(converter.convert_version(model, _RESIZE_OPSET))
    except (converter.ConvertError, RuntimeError, ValueError) as error:
        problem = f"its operators cannot be converted to opset {_RESIZE_OPSET} ({first_line(error)})"
        raise ModelError(where, problem, opset_of(model), hint="export it with opset_version=13 or newer") from error
    return True


def make_padding_explicit(model: Any, shapes: Mapping[str, list[int]]) -> None:
    """Replace ``auto_pad`` of each Conv by ``pads``: TVM imports the former as a separate padded copy of the input."""
    onnx = require("onnx", "onnx")
    for node in model.graph.node:
        attributes = attributes_of(node)
        mode = attributes.get("auto_pad", b"NOTSET")
        if node.op_type != "Conv" or mode not in (b"SAME_UPPER", b"SAME_LOWER"):
            continue
        sizes, kernel = shapes.get(node.input[0], [])[2:], shapes.get(node.input[1], [])[2:]
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
