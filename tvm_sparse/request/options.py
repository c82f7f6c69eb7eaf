"""The options that the public functions share; `tvm_sparse.compile` says what they mean."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypedDict, TypeVar

from tvm_sparse.errors import UsageError
from tvm_sparse.request.request import Request

if TYPE_CHECKING:
    from tvm.target import Target

    from tvm_sparse.logs.tuning_log import TuningLog
    from tvm_sparse.request.variant import Shapes

P = ParamSpec("P")
R = TypeVar("R")


class ModelOptions(TypedDict, total=False):
    """Of every function: what the model is compiled for."""

    target: str | dict[str, Any] | Target | None
    threads: int | None
    log: TuningLog | Path | str | Sequence[Path | str] | None
    shapes: Mapping[str, Shapes] | None
    batch: int | Sequence[int] | None
    dtype: str | None
    samples: Any


class CompileOptions(ModelOptions, total=False):
    """Of functions that choose kernels: what is allowed."""

    allow_tf32: bool
    strict_nonfinite: bool
    predict: bool


def refuse_for_compiled(source: str, options: Mapping[str, Any], *but: str) -> None:
    """UsageError where options are given, `but` for some, of what is compiled already. Empty ones count as none."""
    unset = {each.name: each.default for each in fields(Request)}
    given = [
        name
        for name, value in options.items()
        if name not in but and value is not unset[name] and not (isinstance(value, Sized) and len(value) == 0)
    ]
    if given:
        problem = "an artifact is compiled, and takes no options"
        raise UsageError(source, problem, ", ".join(given), hint="give them when you compile it")


def takes(options: type) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Give a function that ends with ``**options`` these by name: to ``help``, to editors, and to who misspells one."""
    shared = [each for each in fields(Request) if each.name in options.__annotations__]

    def named(function: Callable[P, R]) -> Callable[P, R]:
        own = list(inspect.signature(function).parameters.values())[:-1]
        keywords = [
            inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=each.type)
            for each in shared
        ]
        signature = inspect.signature(function).replace(parameters=[*own, *keywords])

        @wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"{function.__name__}() {error}") from None
            return function(*args, **kwargs)

        checked.__signature__ = signature  # type: ignore[attr-defined]
        return checked

    return named
