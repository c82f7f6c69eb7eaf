"""Refuses every torch operator, and every argument of one, that no test has shown to be imported right."""

import operator
from collections.abc import Iterator
from typing import Any

from tvm_sparse.errors import ModelError
from tvm_sparse.frontend.torch.graph import argument, owner
from tvm_sparse.frontend.torch.rules.operators import OPERATORS

# Arguments that say where and how elements lie, or how to fail, which is all the same to the graph.
_NOT_READ = ("assert_msg", "cudnn_enabled", "device", "layout", "memory_format", "non_blocking", "pin_memory")
# What chooses one of two graphs, whose operators are looked at themselves.
_BRANCH = "cond"
_HINT = "write it with other operators, or compute it outside of the model"


def require_operators(where: str, program: Any) -> None:
    """Raise ModelError where a `torch.export.ExportedProgram` has an operator that `OPERATORS` has not, or not so."""
    # Branches have graphs of their own.
    graphs = [each.graph for each in program.graph_module.modules() if hasattr(each, "graph")]
    for node in (node for graph in graphs for node in graph.nodes):
        if node.op != "call_function" or is_known(node):
            continue
        name = _name(node)
        if name not in OPERATORS:
            raise ModelError(where, f"{owner(node)} has an operator that is not imported", name, hint=_HINT)
        found, allowed = " ".join(_unknown(node)), OPERATORS[name] or "none of its options"
        raise ModelError(where, f"{owner(node)} has {name} in a form that is not imported", found, allowed, _HINT)


def is_known(node: Any) -> bool:
    """Whether `OPERATORS` has all of what a node asks of its operator."""
    if node.target is operator.getitem or _name(node) == _BRANCH:
        return True
    return _name(node) in OPERATORS and not _unknown(node)


def _name(node: Any) -> str:
    return str(node.target).removeprefix("aten.")


def _unknown(node: Any) -> list[str]:
    return sorted(set(words(node)) - set(OPERATORS[_name(node)].split()))


def words(node: Any) -> Iterator[str]:
    """What a node asks of its operator, in the words of `OPERATORS`."""
    for each in node.target._schema.arguments:
        value = argument(node, each.name)
        if each.name in _NOT_READ:
            continue
        tensors = [part for part in (value if isinstance(value, list | tuple) else [value]) if hasattr(part, "meta")]
        yield from (_plain(part.meta["val"].dtype) for part in tensors if hasattr(part.meta["val"], "dtype"))
        is_required = not each.has_default_value()
        if not is_required and value == each.default_value:
            continue
        if value is None or isinstance(value, bool | str) or "dtype" in each.name:
            yield f"{each.name}={_plain(value)}"
        elif not is_required:
            yield each.name
    if len(node.target._schema.returns) > 1:
        read = [user.args[1] for user in node.users if user.target is operator.getitem and user.users]
        yield from (f"[{index}]" for index in read if index > 0)


def _plain(value: Any) -> str:
    return str(value).removeprefix("torch.")
