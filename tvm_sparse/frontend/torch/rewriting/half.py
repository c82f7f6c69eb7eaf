"""Torch programs in half precision as float32 programs of the same numbers; TVM reads few of the former."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tvm_sparse.conv.dtypes import FLOAT32, HALVES
from tvm_sparse.errors import ModelError, first_line
from tvm_sparse.frontend.precision import Precision
from tvm_sparse.frontend.torch.rewriting.autocast import autocast_off

# On nodes of a float32 program: whether the program that it was made of has that tensor in float32, too.
WIDE = "tvm_sparse_wide"


def precision_of(where: str, program: Any) -> Precision:
    """In which types a `torch.export.ExportedProgram` stores its tensors; ModelError where it mixes halves."""
    inputs, outputs = inputs_of(program), _outputs(program)
    # Of what is only cast the type is not computed with: weights are compressed so.
    nodes = [node for node in program.graph.nodes if node.op in ("placeholder", "call_function")]
    read = [node for node in nodes if node.op == "call_function" or not all(map(_is_cast, node.users))]
    read = [node for node in read if not _changes_type(node)]
    stored = {_name(node.meta["val"]) for node in read if hasattr(node.meta.get("val"), "dtype")}
    return Precision.of(where, stored, [_name(each) for each in inputs], [_name(each) for each in outputs])


def widened(where: str, program: Any, keeps_casts: bool = False) -> Any:
    """A float32 program that computes what `program`, in half precision, does, with `WIDE` on its nodes.

    What is in float32 and cast to half precision is rounded there with `keeps_casts`. ModelError where torch cannot
    export it in float32.
    """
    import torch
    from torch.utils import _pytree as pytree

    halves = (torch.float16, torch.bfloat16)

    def wide(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.float() if value.dtype in halves else value
        return torch.float32 if value in halves and isinstance(value, torch.dtype) else value

    module = program.module(check_guards=False)
    rounding = list(_rounding(module.graph)) if keeps_casts else []
    types = {node.name: _type(node) for node in module.graph.nodes}
    for part in module.modules():
        for held in (part._parameters, part._buffers, vars(part)):
            for name, value in held.items():
                if isinstance(value, torch.nn.Parameter) and value.dtype in halves:
                    held[name] = torch.nn.Parameter(value.detach().float(), requires_grad=False)
                elif isinstance(value, torch.Tensor):
                    held[name] = wide(value)
    for node in module.graph.nodes:
        node.args, node.kwargs = pytree.tree_map(wide, (node.args, node.kwargs))
    for node, kind in rounding:
        with module.graph.inserting_before(node):
            rounded = module.graph.call_function(torch.ops.aten.to.dtype, (node.args[0], getattr(torch, kind)))
            node.replace_all_uses_with(module.graph.call_function(torch.ops.aten.to.dtype, (rounded, torch.float32)))
    module.recompile()
    found = exported_again(where, program, module, wide)
    for node in found.graph.nodes:
        came_from = next((types.get(each.name) for each in node.meta.get("from_node", ())), None)
        node.meta[WIDE] = keeps_casts and came_from == FLOAT32
    return found


def tensors_of(program: Any, converted: Mapping[Any, Any]) -> tuple[list[Any], list[Any]]:
    """Of what the operators of a program became, what the program's own tensors are, and which `WIDE` ones.

    * `converted`: node of the graph that was made of `program` -> Relax expression. Nodes within an operator of
      `program` have no part in either.
    """
    own = {node.name: node for node in program.graph.nodes}
    origins = {node: own.get(_source(node), node if node.op == "placeholder" else None) for node in converted}
    origins = {node: node if own.get(node.name) is node else origin for node, origin in origins.items()}
    found: tuple[list[Any], list[Any]] = ([], [])
    for node, value in converted.items():
        origin = origins[node]
        is_inner = origin is not None and node.users and all(origins.get(user) is origin for user in node.users)
        if _type(node) == FLOAT32 and not is_inner:
            found[origin is not None and bool(origin.meta.get(WIDE))].append(value)
    return found


def _source(node: Any) -> str:
    """Name of the node that torch decomposed into this and others; empty where it does not say."""
    sources = list(node.meta.get("from_node", ()))
    while sources:
        source = sources.pop(0)
        if source.pass_name == "ExportedProgram.module()":
            return str(source.name)
        sources = [*source.from_node, *sources]
    return ""


def exported_again(where: str, program: Any, module: Any, wide: Callable[[Any], Any]) -> Any:
    """The program of `module`, which was made of that of `program`, whose inputs are `wide` now.

    ModelError where torch cannot export it in float32.
    """
    import torch
    from torch.utils import _pytree as pytree

    examples = [wide(torch.zeros(each.shape, dtype=each.dtype, device=each.device)) for each in inputs_of(program)]
    args, kwargs = pytree.tree_unflatten(examples, program.call_spec.in_spec)
    try:
        with torch.no_grad(), autocast_off():
            return torch.export.export(module, args, kwargs)
    # It reports what it cannot trace by exceptions of any kind.
    except Exception as error:
        problem = f"torch.export cannot trace it in {FLOAT32} ({first_line(error)})"
        raise ModelError(where, problem, hint="pass the model in float32, and dtype, to which it is cast") from error


def _rounding(graph: Any) -> Iterator[tuple[Any, str]]:
    """Casts from float32 to half precision, and to which."""
    for node in graph.nodes:
        if _changes_type(node) and _type(node) in HALVES and _type(node.args[0]) not in (*HALVES, "bool"):
            yield node, _type(node)


def _changes_type(node: Any) -> bool:
    return str(node.target).startswith(("aten.to.", "aten._to_copy."))


def _is_cast(node: Any) -> bool:
    """Whether it changes the element type, or states it, as torch.export does before that."""
    return _changes_type(node) or str(node.target).startswith("aten._assert_tensor_metadata.")


def _type(node: Any) -> str:
    """Of the tensor that a node is, or of the first of several."""
    value = node.meta.get("val")
    return _name(value[0] if isinstance(value, list | tuple) and value else value)


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
