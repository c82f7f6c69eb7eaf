"""What nodes of exported torch programs are called."""

from collections.abc import Iterator
from typing import Any


def operator_name(node: Any) -> str:
    """Of torch's own operator, as in ``add.Tensor``; "" for any other node."""
    return text.removeprefix("aten.") if (text := str(node.target)).startswith("aten.") else ""


def owner(node: Any) -> str:
    """The module that an operator belongs to; the operator where the graph does not say, as of `torch.compile`."""
    owners: Iterator[tuple[str, Any]] = reversed((node.meta.get("nn_module_stack") or {}).values())
    path, kind = next(owners, ("", ""))
    if not path:
        return str(node.name)
    return f"module {path} ({str(getattr(kind, '__name__', kind)).rsplit('.', 1)[-1]})"
