"""Torch module or program -> Relax module whose parameters are constants."""

import copy
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import tvm

from tvm_sparse.errors import ModelError, first_line
from tvm_sparse.frontend.one_at_a_time import one_at_a_time
from tvm_sparse.frontend.relax_import import checked, ignore_warnings, tvm_frontend
from tvm_sparse.frontend.steps import with_steps
from tvm_sparse.frontend.torch.converters import Converter, converters
from tvm_sparse.frontend.torch.noting import noting
from tvm_sparse.frontend.torch.rewriting.autocast import with_casts
from tvm_sparse.frontend.torch.rewriting.direct import CONVERTERS, is_direct
from tvm_sparse.frontend.torch.rewriting.half import tensors_of
from tvm_sparse.frontend.torch.rules.require_operators import require_operators
from tvm_sparse.frontend.torch.rules.require_types import require_types
from tvm_sparse.frontend.torch.rules.training import exported_for_evaluation, require_evaluation_graph

# Where TVM's passes read constants.
_HOST = "cpu"


@one_at_a_time
def export_module(module: Any, example_inputs: Any) -> Any:
    """The `torch.export.ExportedProgram` of a module, traced with `example_inputs`.

    ModelError where the module, or a part of it, is in training mode, gets no inputs, or cannot be traced.
    """
    import torch

    if example_inputs is None:
        raise ModelError(
            "model", "a torch module needs example inputs", hint="pass example_inputs=(torch.zeros(1, 3, 224, 224),)"
        )
    inputs = (example_inputs,) if isinstance(example_inputs, torch.Tensor) else tuple(example_inputs)
    return exported_for_evaluation(module, lambda: _exported(module, inputs))


def _exported(module: Any, inputs: tuple[Any, ...]) -> Any:
    import torch

    try:
        ignore_warnings()
        with torch.no_grad():
            return with_casts(torch.export.export(module, inputs))
    # They report what they cannot convert by exceptions of any kind.
    except Exception as error:
        with torch.no_grad():
            layer = failing_layer(module, inputs)
        problem = f"torch.export cannot trace it ({first_line(error)})"
        hint = "see docs.pytorch.org/docs/stable/export.html"
        if layer:
            hint = "give inputs of the size that this layer was made for"
        raise ModelError(f"layer {layer}" if layer else "model", problem, hint=hint) from error


def import_program(where: str, program: Any, is_half: bool = False) -> tvm.IRModule:
    """The Relax module of a `torch.export.ExportedProgram`; see `ModelSource.relax_module`.

    With `is_half` it will be stored in half precision, and knows its steps.
    """
    from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

    require_evaluation_graph(where, program)
    _require_elements(where, program)
    importer = ExportedProgramImporter()
    with tvm_frontend(where):
        whole = _on_cpu(program)
        program, custom = readable(whole)
    require_operators(where, program)
    with tvm_frontend(where):
        module = importer.from_exported_program(
            program,
            keep_params_as_input=False,
            unwrap_unit_return_tuple=True,
            no_bind_return_tuple=False,
            custom_convert_map=noting(custom),
        )
    require_types(where, importer.env)
    if is_half:
        module = with_steps(module, *tensors_of(whole, importer.env))
    return checked(where, module)


def _require_elements(where: str, program: Any) -> None:
    """Raise ModelError for an input of no elements, as of a batch of 0."""
    names = set(program.graph_signature.user_inputs)
    for node in program.graph.nodes:
        shape = list(getattr(node.meta.get("val"), "shape", ()))
        if node.op == "placeholder" and node.name in names and 0 in shape:
            raise ModelError(
                where, f"input {node.name} has no elements", shape, "sizes of 1 or more", "use a batch of 1"
            )


def readable(program: Any) -> tuple[Any, dict[str, Converter]]:
    """The program that TVM reads in place of `program`, and how it converts some of its operators."""
    custom: dict[str, Converter] = CONVERTERS
    if not is_direct(program):
        # It imports torch, which who has a program did before.
        from tvm_sparse.frontend.torch.rewriting.decompose import decomposed

        program, custom = decomposed(program), converters()
    return program, custom


def _on_cpu(program: Any) -> Any:
    """`program` with its parameters and buffers on the CPU, itself if they are there already."""
    from torch.export.passes import move_to_device_pass

    tensors = [*program.state_dict.values(), *program.constants.values()]
    if all(str(getattr(each, "device", _HOST)) == _HOST for each in tensors):
        return program
    return move_to_device_pass(copy.deepcopy(program), "cpu")


def failing_layer(module: Any, inputs: Sequence[Any]) -> str:
    """The name of the innermost module that raises in a call of `module`; empty where none does, or `module` itself."""
    entered: list[str] = []

    def enter(name: str, *_: Any) -> None:
        entered.append(name)

    def leave(*_: Any) -> None:
        entered.pop()

    with ExitStack() as hooks:
        for name, each in module.named_modules():
            hooks.callback(each.register_forward_pre_hook(partial(enter, name)).remove)
            hooks.callback(each.register_forward_hook(leave).remove)
        try:
            module(*inputs)
        # What a module raises is the user's own.
        except Exception:
            return entered[-1]
    return ""
