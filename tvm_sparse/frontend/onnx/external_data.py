"""The parts of ONNX files that lie in other files beside them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tvm_sparse.errors import ModelError
from tvm_sparse.frontend.onnx.graph.nodes import every_graph
from tvm_sparse.frontend.optional_imports import onnx

# What protobuf reads and writes at once, and with it ONNX's checker and inference.
MOST_BYTES = 2**31 - 1
_HINT = "keep the files that the export wrote in one folder"


def require_readable(path: Path, size: int) -> None:
    """Raise ModelError where a model of `size` bytes is more than ONNX reads."""
    if size > MOST_BYTES:
        hint = "store its weights in half precision, or split the model"
        raise ModelError(str(path), "the model is too large", f"{size} bytes", f"up to {MOST_BYTES}", hint)


def load_external_data(path: Path, model: Any) -> None:
    """Read the values of the tensors of an `onnx.ModelProto` from `path` that are in other files.

    ModelError where a file is missing, or not in the folder of the model or one below, or all are too large.
    """
    graphs = [*every_graph(model.graph), *(graph for each in model.functions for graph in every_graph(each))]
    helper = onnx.external_data_helper
    tensors = [each for graph in graphs for each in _tensors(graph) if helper.uses_external_data(each)]
    require_readable(path, path.stat().st_size + sum(_size(path, each) for each in tensors))
    for tensor in tensors:
        helper.load_external_data_for_tensor(tensor, str(path.parent))
        # As onnx itself does: the values are here now.
        tensor.data_location = tensor.DEFAULT
        del tensor.external_data[:]


def _size(path: Path, tensor: Any) -> int:
    """Bytes of a tensor in the file that it names, which is there, beside the model."""
    folder = path.parent.resolve()
    entries = {each.key: each.value for each in tensor.external_data}
    location = entries.get("location", "")
    file = (folder / location).resolve()
    if not file.is_relative_to(folder):
        problem = f"the data of tensor {tensor.name} is outside the model's folder"
        raise ModelError(str(path), problem, location, "a file beside the model", _HINT)
    if not file.is_file():
        problem = f"the file with the data of tensor {tensor.name} is missing"
        raise ModelError(str(path), problem, location, hint=_HINT)
    length, offset = (entries.get(key, "0") for key in ("length", "offset"))
    if not all(each.isascii() and each.isdigit() and len(each) < 20 for each in (length, offset)):
        found, allowed = f"offset {offset}, length {length}"[:100], "whole numbers of bytes"
        raise ModelError(str(path), f"the place of the data of tensor {tensor.name} is none", found, allowed, _HINT)
    rest = file.stat().st_size - int(offset)
    return min(int(length), rest) if int(length) else max(rest, 0)


def _tensors(graph: Any) -> Iterator[Any]:
    """Every tensor that a graph or function holds, in its constants and its nodes."""
    # A function has no constants of its own.
    yield from getattr(graph, "initializer", ())
    attributes = [each for node in graph.node for each in node.attribute]
    for attribute in attributes:
        yield from ([attribute.t] if attribute.HasField("t") else attribute.tensors)
    for sparse in (*getattr(graph, "sparse_initializer", ()), *(each.sparse_tensor for each in attributes)):
        yield from (sparse.values, sparse.indices)
