"""Rewrites what TVM's importer reads wrongly, or makes slow code of, as other nodes of ONNX."""

from collections.abc import Mapping, Sequence
from typing import Any

from tvm_sparse.errors import ModelError, first_line
from tvm_sparse.frontend.onnx.graph.constants import ONNX_DOMAINS, opset_of
from tvm_sparse.frontend.onnx.model import attributes_of
from tvm_sparse.frontend.optional_imports import onnx

# Operators whose first forms TVM does not read, and the first version of which it reads all.
_OLD = ("Resize", "Slice", "TopK", "Upsample")
_READ_OPSET = 11
# Before the first operators broadcast by attributes, which TVM and the reference implementation do not read; with the
# second constants are of any type.
_BROADCASTING_OPSET, _CONSTANTS_OPSET = 7, 9
_PADDED = ("Conv", "MaxPool", "AveragePool", "LpPool")
# Values of auto_pad by which the output has the size of the input, by the stride.
_SAME = (b"SAME_UPPER", b"SAME_LOWER")


def upgrade_first_operators(where: str, model: Any) -> None:
    """Convert an `onnx.ModelProto` of the first versions of the operators, in place.

    ModelError where ONNX's converter does not know the way for one of the operators, or an operator broadcasts along
    given axes.
    """
    if opset_of(model) >= _BROADCASTING_OPSET:
        return
    for node in model.graph.node:
        # The converter gives the second operand too many axes.
        if {"axis", "broadcast"} <= attributes_of(node).keys():
            name, problem = f"{where}, node {node.name or node.output[0]}", "it broadcasts as before opset 7"
            found, hint = (
                f"{node.op_type} along axis {attributes_of(node)['axis']}",
                "export it with a newer opset_version",
            )
            raise ModelError(name, problem, found, "operands that NumPy broadcasts", hint)
    convert_operators(where, model, _CONSTANTS_OPSET)


def upgrade_operators(where: str, model: Any) -> bool:
    """Convert an `onnx.ModelProto` with old operators that TVM does not read, in place; whether it was one.

    ModelError where ONNX's converter does not know the way for one of the operators.
    """
    is_old = any(node.op_type in _OLD and node.domain in ONNX_DOMAINS for node in model.graph.node)
    if opset_of(model) >= _READ_OPSET or not is_old:
        return False
    convert_operators(where, model, _READ_OPSET)
    for node in model.graph.node:
        if node.op_type == "Resize":
            # The converter leaves these at the defaults of the newer version, which resize otherwise.
            names = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
            _set_attributes(node, tuple(names), names)
    return True


def sort_largest(model: Any) -> None:
    """Let each TopK that may give its results in any order give them in that which TVM knows."""
    for node in model.graph.node:
        if node.op_type == "TopK" and node.domain in ONNX_DOMAINS:
            _set_attributes(node, (), {"sorted": 1})


def convert_operators(where: str, model: Any, version: int) -> None:
    """Convert an `onnx.ModelProto` to a version of the operators, in place; ModelError where ONNX does not know how."""
    try:
        model.CopyFrom(onnx.version_converter.convert_version(model, version))
    except (onnx.version_converter.ConvertError, RuntimeError, ValueError) as error:
        problem = f"its operators cannot be converted to opset {version} ({first_line(error)})"
        raise ModelError(where, problem, opset_of(model), hint="export it with opset_version=13 or newer") from error


def make_padding_explicit(model: Any, shapes: Mapping[str, list[int]]) -> None:
    """Replace ``auto_pad`` of each Conv and pooling by ``pads``.

    TVM imports the former of a Conv as a separate padded copy of the input, and of a pooling wrongly.
    """
    for node in model.graph.node:
        attributes = attributes_of(node)
        mode = attributes.get("auto_pad", b"NOTSET")
        if node.op_type not in _PADDED or node.domain not in ONNX_DOMAINS or mode not in _SAME:
            continue
        sizes = shapes.get(node.input[0], [])[2:]
        kernel = attributes.get("kernel_shape") or shapes.get(node.input[1], [])[2:]
        if not sizes or len(sizes) != len(kernel) or 0 in sizes:
            continue
        ones = [1] * len(sizes)
        strides, dilations = attributes.get("strides", ones), attributes.get("dilations", ones)
        # What makes the output as large as the input by the stride.
        totals = [
            max((-(-size // stride) - 1) * stride + (extent - 1) * dilation + 1 - size, 0)
            for size, extent, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True)
        ]
        # The output's size is rounded up as it is.
        _set_attributes(node, ("auto_pad", "ceil_mode"), {"pads": _pads(totals, mode == b"SAME_UPPER")})


def make_output_shapes_explicit(where: str, model: Any, shapes: Mapping[str, list[int]]) -> None:
    """Replace ``output_shape`` and ``auto_pad`` of each ConvTranspose by ``pads`` and ``output_padding``.

    TVM does not read the former. ModelError where the output is larger than any padding makes it.
    """
    for node in model.graph.node:
        attributes = attributes_of(node) if node.op_type == "ConvTranspose" and node.domain in ONNX_DOMAINS else {}
        wanted, mode = attributes.get("output_shape"), attributes.get("auto_pad")
        if not wanted and mode not in _SAME:
            continue
        sizes, kernel = shapes.get(node.input[0], [])[2:], shapes.get(node.input[1], [])[2:]
        if len(sizes) != len(kernel) or 0 in sizes:
            continue
        strides = attributes.get("strides", [1] * len(sizes))
        outs = (wanted or [size * stride for size, stride in zip(sizes, strides, strict=True)])[-len(sizes) :]
        dilations, added = (
            attributes.get("dilations", [1] * len(sizes)),
            attributes.get("output_padding", [0] * len(sizes)),
        )
        totals = [
            stride * (size - 1) + (extent - 1) * dilation + 1 + more - out
            for size, extent, stride, dilation, more, out in zip(
                sizes, kernel, strides, dilations, added, outs, strict=True
            )
        ]
        # What an output_shape lacks is added behind, where a stride leaves place for it; auto_pad only takes away.
        added = [more + max(-total, 0) if wanted else more for more, total in zip(added, totals, strict=True)]
        if wanted and any(more >= stride for more, stride in zip(added, strides, strict=True)):
            name, problem = f"{where}, node {node.name or node.output[0]}", "its output_shape is too large"
            largest = tuple(out + total + stride - 1 for out, total, stride in zip(outs, totals, strides, strict=True))
            raise ModelError(name, problem, tuple(wanted), f"up to {largest}", "give it as pads and output_padding")
        pads = _pads([max(total, 0) for total in totals], mode == b"SAME_UPPER")
        _set_attributes(node, ("auto_pad", "output_shape"), {"pads": pads, "output_padding": added})


def _pads(totals: Sequence[int], is_upper: bool) -> list[int]:
    """The paddings before all axes and behind all, of their sums; the larger half is behind with ``SAME_UPPER``."""
    small, large = [total // 2 for total in totals], [total - total // 2 for total in totals]
    return small + large if is_upper else large + small


def _set_attributes(node: Any, removed: Sequence[str], added: Mapping[str, Any]) -> None:
    """Take attributes out of a node and give it others."""
    kept = [each for each in node.attribute if each.name not in (*removed, *added)]
    del node.attribute[:]
    node.attribute.extend([*kept, *(onnx.helper.make_attribute(name, value) for name, value in added.items())])
