"""Holds what TVM made of each torch operator against the shape and element type that torch says it has."""

from collections.abc import Iterator, Mapping
from typing import Any

from tvm import relax

from tvm_sparse.errors import ModelError
from tvm_sparse.frontend.passes.relax_graph import fixed_shape
from tvm_sparse.frontend.torch.graph import operator_name, owner


def require_types(where: str, converted: Mapping[Any, Any]) -> None:
    """Raise ModelError where the tensors that nodes were converted to are not of the nodes' shapes and types.

    * `converted`: node of an exported graph -> Relax expression.
    """
    for node, value in converted.items():
        for wanted, found in _tensors(node, value):
            shape, dtype = tuple(wanted.shape), str(wanted.dtype).removeprefix("torch.")
            if all(isinstance(size, int) for size in shape) and (fixed_shape(found), str(found.dtype)) != (
                shape,
                dtype,
            ):
                problem = f"TVM makes another tensor of {owner(node)}: {operator_name(node)}"
                of_torch = f"{dtype} of shape {list(shape)}, as in torch"
                raise ModelError(where, problem, found, of_torch, "write it with other operators")


def _tensors(node: Any, value: Any) -> Iterator[tuple[Any, Any]]:
    """What torch knows of a node's tensor and the type of what it became; of a tuple those that others read."""
    wanted, kind = node.meta.get("val"), getattr(value, "ty", None)
    if hasattr(wanted, "dtype") and isinstance(kind, relax.TensorType):
        yield wanted, kind
