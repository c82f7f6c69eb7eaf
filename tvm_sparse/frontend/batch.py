"""The same model for several batch sizes: the first dimension of every input and output counts samples."""

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax

from tvm_sparse.errors import ModelError, UsageError
from tvm_sparse.frontend.passes.relax_graph import fixed_shape


def batch_sizes(batch: int | Sequence[int]) -> list[int]:
    """Batch sizes, each once, ascending; UsageError where there is none, or one is no whole number of 1 or more."""
    sizes = [batch] if isinstance(batch, int) else list(batch)
    if not sizes or not all(type(size) is int and size >= 1 for size in sizes):
        raise UsageError("batch", "is not usable", batch, "one or several whole numbers of 1 or more, such as [1, 8]")
    return sorted(set(sizes))


def with_batch(inputs: Any, batch: int) -> Any:
    """Torch tensors like `inputs`, one or a tuple, but with `batch` samples each; their values are zeros."""
    if isinstance(inputs, (tuple, list)):
        return tuple(with_batch(each, batch) for each in inputs)
    return inputs.new_zeros((batch, *inputs.shape[1:])) if getattr(inputs, "ndim", 0) else inputs


def require_batch(where: str, module: tvm.IRModule, batch: int) -> None:
    """Raise ModelError unless every input and output of ``main`` has `batch` samples."""
    main = module["main"]
    results = [main.ret_ty] if isinstance(main.ret_ty, relax.TensorType) else main.ret_ty.fields
    named = [(f"input {parameter.name}", parameter.ty) for parameter in main.params]
    named += [(f"output {index}", result) for index, result in enumerate(results)]
    for name, kind in named:
        shape = fixed_shape(kind) or ()
        if shape[:1] != (batch,):
            problem = f"batch {batch} was asked for, and {name} has another first dimension"
            hint = "pass the torch module, or an .onnx file exported with an open batch dimension"
            raise ModelError(where, problem, f"shape {shape}", f"({batch}, ...)", hint)
