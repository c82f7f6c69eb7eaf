"""Torch programs traced with `torch.autocast`, with the casts that it stands for."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

_KINDS = ("cpu", "cuda")


def with_casts(program: Any) -> Any:
    """The `torch.export.ExportedProgram`, just traced, with a node for each cast; itself where there is no autocast."""
    is_within = any("wrap_with_autocast" in str(node.target) for node in program.graph.nodes)
    return program.run_decompositions({}) if is_within or _enabled() else program


@contextmanager
def autocast_off() -> Iterator[None]:
    """Within it torch traces a program with the casts that it has, also where the caller's autocast is on."""
    import torch

    with ExitStack() as stack:
        for kind in _enabled():
            stack.enter_context(torch.autocast(kind, enabled=False))
        yield


def _enabled() -> list[str]:
    import torch

    return [kind for kind in _KINDS if torch.is_autocast_enabled(kind)]
