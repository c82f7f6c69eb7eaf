"""What nodes of exported torch programs are called."""

from collections.abc import Iterator
from typing import Any


def operator_name(node: Any) -> str:
    """Of torch's own operator, as in ``add.Tensor``; "" for any other node."""
    return text.removeprefix("aten.") if (text := str(node.target)).startswith("aten.") else ""


def is_quantising(node: Any) -> bool:
    """Whether it is an operator that PT2E adds to a program."""
    return str(node.target).startswith("quantized_decomposed.")


def owner(node: Any) -> str:
    """The module that an operator belongs to; the operator where the graph does not say, as of `torch.compile`."""
    owners: Iterator[tuple[str, Any]] = reversed((node.meta.get("nn_module_stack") or {}).values())
    path, kind = next(owners, ("", ""))
    if not path:
        return str(node.name)
    return f"module {path} ({str(getattr(kind, '__name__', kind)).rsplit('.', 1)[-1]})"


def argument(node: Any, name: str) -> Any:
    """What a node of an operator gives for an argument of its schema, or its default; None where it has no such."""
    for position, each in enumerate(node.target._schema.arguments):
        if each.name == name:
            if position < len(node.args):
                return node.args[position]
            return node.kwargs.get(name, each.default_value)
    return None
