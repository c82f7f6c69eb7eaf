"""ONNX model or torch program -> Relax module whose parameters are constants.

Parameters become constants at import, never function arguments: TVM's ``keep_params_as_input`` loses the masks of
`torch.nn.utils.prune`, and folding weights needs their values anyway.
"""

import contextlib
import copy
import io
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tvm
from tvm import relax

from tvm_sparse.conv.spec import MAX_ELEMENTS
from tvm_sparse.errors import ModelError, first_line
from tvm_sparse.frontend.einsum import make_products_explicit
from tvm_sparse.frontend.onnx_fold_shapes import fold_shapes
from tvm_sparse.frontend.onnx_model import check_shapes, fix_shapes
from tvm_sparse.frontend.onnx_rewrite import (
    drop_empty_scales,
    make_output_shapes_explicit,
    make_padding_explicit,
    require_whole_sizes,
    upgrade_operators,
)
from tvm_sparse.frontend.passes.relax_graph import fixed_shape
from tvm_sparse.frontend.torch_direct import CONVERTERS, is_direct
from tvm_sparse.frontend.torch_refuse import refuse_ignored_arguments
from tvm_sparse.frontend.torch_training import require_evaluation, require_evaluation_graph

# Where TVM's passes read constants.
_HOST = "cpu"


def export_module(module: Any, example_inputs: Any) -> Any:
    """The `torch.export.ExportedProgram` of a module, traced with `example_inputs`.

    Raises
    ------
    ModelError
        The module, or a part of it, is in training mode, gets no inputs, or cannot be traced.
    """
    import torch

    require_evaluation(module)
    if example_inputs is None:
        raise ModelError(
            "model", "a torch module needs example inputs", hint="pass example_inputs=(torch.zeros(1, 3, 224, 224),)"
        )
    inputs = (example_inputs,) if isinstance(example_inputs, torch.Tensor) else tuple(example_inputs)
    try:
        with torch.no_grad(), _quiet():
            return torch.export.export(module, inputs)
    # They report what they cannot convert by exceptions of any kind.
    except Exception as error:
        problem = f"torch.export cannot trace it ({first_line(error)})"
        raise ModelError("model", problem, hint="see docs.pytorch.org/docs/stable/export.html") from error


def import_program(where: str, program: Any) -> tvm.IRModule:
    """The Relax module of a `torch.export.ExportedProgram`; see `ModelSource.relax_module`."""
    from tvm.relax.frontend.torch import from_exported_program

    require_evaluation_graph(where, program)
    refuse_ignored_arguments(where, program)
    direct = is_direct(program)
    with _frontend(where):
        module = from_exported_program(
            _on_cpu(program),
            unwrap_unit_return_tuple=True,
            custom_convert_map=CONVERTERS if direct else None,
            run_ep_decomposition=not direct,
        )
    return _checked(where, module)


def _on_cpu(program: Any) -> Any:
    """`program` with its parameters and buffers on the CPU, itself if they are there already."""
    from torch.export.passes import move_to_device_pass

    tensors = [*program.state_dict.values(), *program.constants.values()]
    if all(str(getattr(each, "device", _HOST)) == _HOST for each in tensors):
        return program
    return move_to_device_pass(copy.deepcopy(program), "cpu")


def import_onnx(where: str, model: Any, shapes: Mapping[str, Sequence[int]], batch: int | None = None) -> tvm.IRModule:
    """The Relax module of an `onnx.ModelProto`, which is given `shapes` in place; see `ModelSource.relax_module`."""
    from tvm.relax.frontend.onnx import from_onnx

    fix_shapes(where, model, shapes, batch)
    inferred = check_shapes(where, model)
    if fold_shapes(model) | upgrade_operators(where, model):
        # What was unknown behind them is known now.
        inferred = check_shapes(where, model)
    drop_empty_scales(model)
    make_products_explicit(model)
    require_whole_sizes(where, model, inferred)
    make_padding_explicit(model, inferred)
    make_output_shapes_explicit(where, model, inferred)
    with _frontend(where):
        module = from_onnx(model, keep_params_in_input=False)
    return _checked(where, module)


def _checked(where: str, module: tvm.IRModule) -> tvm.IRModule:
    """`module`, whose inputs and outputs all have known shapes and none of whose tensors is too large."""
    main = module["main"]
    results = [main.ret_ty] if isinstance(main.ret_ty, relax.TensorType) else list(getattr(main.ret_ty, "fields", []))
    named = [(f"input {parameter.name}", parameter.ty) for parameter in main.params]
    named += [(f"output {index}", result) for index, result in enumerate(results)]
    if not main.params or not results:
        raise ModelError(where, f"the model has no {'input' if results else 'output'}", hint="export it again")
    for name, kind in named:
        if fixed_shape(kind) is None:
            hint = "export it without dynamic_shapes, once for each batch size"
            raise ModelError(where, f"{name} has no fixed shape", kind, hint=hint)
    inner = [binding.var for block in main.body.blocks for binding in block.bindings]
    for name, kind in (*named, *((f"tensor {var.name}", var.ty) for var in inner)):
        if isinstance(kind, relax.TensorType) and fixed_shape(kind) is None:
            hint = "export it so that no shape depends on values"
            raise ModelError(where, f"{name} has no fixed shape", kind, hint=hint)
        sizes = list(fixed_shape(kind) or ())
        if min(sizes, default=0) < 0:
            raise ModelError(where, f"{name} has an impossible shape", sizes, "sizes of 0 or more")
        if math.prod(sizes) > MAX_ELEMENTS:
            found, allowed = f"{math.prod(sizes)} elements", f"up to {MAX_ELEMENTS}"
            raise ModelError(where, f"{name} is too large", found, allowed, "use a smaller input or batch")
    return module


@contextlib.contextmanager
def _frontend(where: str) -> Iterator[None]:
    """Run a TVM front end: no chatter, and one sentence for whatever it cannot convert."""
    try:
        with _quiet():
            yield
    # They report what they cannot convert by exceptions of any kind.
    except Exception as error:
        problem = f"TVM cannot import it ({first_line(error)})"
        raise ModelError(where, problem, hint="replace that operator in the model") from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Drop warnings about names, and the failing operator's inputs that TVM prints before it raises."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
