"""ONNX operators on images and maps that TVM reads wrongly or not at all, as other nodes of ONNX."""

from typing import Any

from tvm_sparse.frontend.onnx.rewriting import deform_conv, pooling, rearrange, resize, sampling
from tvm_sparse.frontend.onnx.rewriting.replace_nodes import replace_nodes

_SUBJECTS = (resize, pooling, rearrange, deform_conv, sampling)
_REWRITES = {operator: rewrite for subject in _SUBJECTS for operator, rewrite in subject.REWRITES.items()}


def rewrite_spatial_operators(where: str, model: Any) -> None:
    """Replace those of an `onnx.ModelProto`, whose shapes are fixed, in place.

    ModelError where one of them, with its attributes, is not supported.
    """
    replace_nodes(where, model, _REWRITES)
