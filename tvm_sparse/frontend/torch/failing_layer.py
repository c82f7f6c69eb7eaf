"""The layer of a torch module in which a call fails, as where an input has a size that a later layer cannot take."""

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any


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
