"""The same model for other shapes of its inputs; a batch is the first dimension of all, and of every output."""

import inspect
from collections.abc import Collection, Mapping, Sequence
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


def examples_of(module: Any, inputs: Any, shapes: Mapping[str, Sequence[int]] | None, batch: int | None) -> Any:
    """Torch tensors like `inputs`, one or a tuple, with other shapes, by names of arguments of ``forward``, or `batch`.

    The values of those that change are zeros. ModelError where there is no input of such a name.
    """
    if shapes:
        inputs = tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)
        names = list(inspect.signature(module.forward).parameters)[: len(inputs)]
        require_inputs("model", shapes, names)
        given = {names.index(name): shape for name, shape in shapes.items()}
        inputs = tuple(each.new_zeros(given[i]) if i in given else each for i, each in enumerate(inputs))
    return inputs if batch is None else _with_batch(inputs, batch)


def _with_batch(inputs: Any, batch: int) -> Any:
    if isinstance(inputs, (tuple, list)):
        return tuple(_with_batch(each, batch) for each in inputs)
    return inputs.new_zeros((batch, *inputs.shape[1:])) if getattr(inputs, "ndim", 0) else inputs


def require_inputs(where: str, shapes: Mapping[str, Sequence[int]], names: Collection[str]) -> None:
    """Raise ModelError where `shapes` are of inputs that are not among `names`."""
    if unknown := sorted(set(shapes) - set(names)):
        raise ModelError(where, "no such input", ", ".join(unknown), ", ".join(names))


def require_shapes(
    where: str, module: tvm.IRModule, shapes: Mapping[str, Sequence[int]] | None, batch: int | None
) -> None:
    """Raise ModelError unless the inputs of ``main`` have `shapes`, with `batch` as first dimension if there is one."""
    found = {parameter.name: fixed_shape(parameter.ty) or () for parameter in module["main"].params}
    require_inputs(where, shapes or {}, found)
    for name, shape in (shapes or {}).items():
        wanted = tuple(shape) if batch is None else (batch, *shape[1:])
        if found[name] != wanted:
            hint = "pass the torch module, or an .onnx file exported with open sizes"
            raise ModelError(where, f"input {name} was exported with another shape", found[name], str(wanted), hint)


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
