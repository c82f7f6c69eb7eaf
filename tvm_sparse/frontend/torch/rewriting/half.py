"""Torch programs in half precision as float32 programs of the same numbers; TVM reads few of the former."""

from collections.abc import Callable
from typing import Any

from tvm_sparse.conv.dtypes import FLOAT32
from tvm_sparse.errors import ModelError, first_line
from tvm_sparse.frontend.precision import Precision


def precision_of(where: str, program: Any) -> Precision:
    """In which types a `torch.export.ExportedProgram` stores its tensors; ModelError where it mixes halves."""
    inputs, outputs = inputs_of(program), _outputs(program)
    # Inputs, weights and buffers. One that is only cast is compressed, and computed with in another type.
    read = [node for node in program.graph.nodes if node.op == "placeholder" and not all(map(_is_cast, node.users))]
    stored = {_name(node.meta["val"]) for node in read if hasattr(node.meta["val"], "dtype")}
    return Precision.of(where, stored, [_name(each) for each in inputs], [_name(each) for each in outputs])


def widened(where: str, program: Any) -> Any:
    """A float32 program that computes what `program`, in half precision, does.

    ModelError where torch cannot export it in float32.
    """
    import torch
    from torch.utils import _pytree as pytree

    halves = (torch.float16, torch.bfloat16)

    def wide(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.float() if value.dtype in halves else value
        return torch.float32 if value in halves and isinstance(value, torch.dtype) else value

    module = program.module(check_guards=False)
    for part in module.modules():
        for held in (part._parameters, part._buffers, vars(part)):
            for name, value in held.items():
                if isinstance(value, torch.nn.Parameter) and value.dtype in halves:
                    held[name] = torch.nn.Parameter(value.detach().float(), requires_grad=False)
                elif isinstance(value, torch.Tensor):
                    held[name] = wide(value)
    for node in module.graph.nodes:
        node.args, node.kwargs = pytree.tree_map(wide, (node.args, node.kwargs))
    module.recompile()
    return exported_again(where, program, module, wide)


def exported_again(where: str, program: Any, module: Any, wide: Callable[[Any], Any]) -> Any:
    """The program of `module`, which was made of that of `program`, whose inputs are `wide` now.

    ModelError where torch cannot export it in float32.
    """
    import torch
    from torch.utils import _pytree as pytree

    examples = [wide(torch.zeros(each.shape, dtype=each.dtype, device=each.device)) for each in inputs_of(program)]
    args, kwargs = pytree.tree_unflatten(examples, program.call_spec.in_spec)
    try:
        with torch.no_grad():
            return torch.export.export(module, args, kwargs)
    # It reports what it cannot trace by exceptions of any kind.
    except Exception as error:
        problem = f"torch.export cannot trace it in {FLOAT32} ({first_line(error)})"
        raise ModelError(where, problem, hint="pass the model in float32, and dtype, to which it is cast") from error


def _is_cast(node: Any) -> bool:
    """Whether it changes the element type, or states it, as torch.export does before that."""
    return str(node.target).startswith(("aten.to.", "aten._to_copy.", "aten._assert_tensor_metadata."))


def _name(tensor: Any) -> str:
    return str(getattr(tensor, "dtype", type(tensor).__name__)).removeprefix("torch.")


def inputs_of(program: Any) -> list[Any]:
    """What the program knows of the caller's inputs."""
    names = set(program.graph_signature.user_inputs)
    return [node.meta["val"] for node in program.graph.nodes if node.op == "placeholder" and node.name in names]


def _outputs(program: Any) -> list[Any]:
    """What the program knows of what it returns."""
    nodes = {node.name: node for node in program.graph.nodes}
    return [nodes[name].meta["val"] for name in program.graph_signature.user_outputs if name in nodes]
