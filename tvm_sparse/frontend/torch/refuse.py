"""Refuses torch operators of which TVM ignores an argument: it would compute something else without a word."""

from typing import Any

from tvm_sparse.errors import ModelError
from tvm_sparse.frontend.torch.graph import operator_name, owner

_SCALED = ("add", "add_", "sub", "sub_", "rsub")
_SCALAR_RSUB = "rsub.Scalar"
_NEAREST = ("upsample_nearest2d.vec", "upsample_nearest2d.default")
_AVERAGES = ("avg_pool2d.default", "avg_pool3d.default")


def refuse_ignored_arguments(where: str, program: Any) -> None:
    """Raise ModelError where an operator of a `torch.export.ExportedProgram` has an argument that TVM ignores."""
    for node in program.graph.nodes:
        problem, hint = _problem(node) if node.op == "call_function" else ("", "")
        if problem:
            raise ModelError(where, f"TVM cannot import {owner(node)}: {problem}", hint=hint)


def _problem(node: Any) -> tuple[str, str]:
    """What is ignored of an operator, and what to write instead; ("", "") where nothing is."""
    name = operator_name(node)
    kind = name.partition(".")[0]
    if kind in _SCALED:
        alpha = node.args[2] if name == _SCALAR_RSUB and len(node.args) > 2 else node.kwargs.get("alpha", 1)
        if alpha != 1:
            return f"{kind} with alpha={alpha}", "multiply by it before"
    if name in _AVERAGES and _argument(node, 6, "divisor_override") is not None:
        return "an average pool with divisor_override", "multiply the sum of a plain one"
    if name in _NEAREST:
        source, sizes = node.args[0].meta["val"].shape[2:], node.meta["val"].shape[2:]
        if any(size % own for own, size in zip(source, sizes, strict=True)) and not _is_by_scale(node, source, sizes):
            found = f"the nearest of {'x'.join(map(str, source))} for {'x'.join(map(str, sizes))} pixels"
            return found, "interpolate by a scale, or bilinearly"
    return "", ""


def _argument(node: Any, position: int, name: str) -> Any:
    return node.args[position] if len(node.args) > position else node.kwargs.get(name)


def _is_by_scale(node: Any, source: Any, sizes: Any) -> bool:
    """Whether the sizes are what a scale gives, without rounding: then TVM's pixels are torch's."""
    scales = _argument(node, 2, "scale_factors")
    return bool(scales) and all(own * scale == size for own, scale, size in zip(source, scales, sizes, strict=True))
