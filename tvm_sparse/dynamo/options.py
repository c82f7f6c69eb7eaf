"""Options of the back end."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from tvm_sparse.compiler.build_model import compile as compile_model
from tvm_sparse.errors import UsageError
from tvm_sparse.frontend.batch import batch_sizes
from tvm_sparse.runtime.multi_shape_model import AnyModel

WHERE = "torch.compile"
OnChange = Literal["rebuild", "refuse"]
# What `tvm_sparse.compile` is given by the back end itself, or not at all: a graph's tensors are what torch gives it.
_OWN = {"source", "example_inputs", "shapes", "batch", "dtype"}


@dataclass(frozen=True)
class Options:
    """How graphs of a model are compiled; given to `torch.compile` as a dict, ``options={"log": "my.jsonl"}``.

    UsageError where an option is unknown or has no usable value.

    Parameters
    ----------
    density
        A graph is compiled where one of its layers has no more than this share of non-zeros; others stay eager.
    on_change
        What a call does whose weights are not those of the last one: ``rebuild``, or ``refuse`` with a ModelError.
    batch
        Batch sizes. A graph whose inputs and results all count samples in their first dimension is compiled for these,
        and takes any number of samples as `MultiShapeModel` does. Without it a graph is compiled for each shape.
    max_shapes
        A graph is compiled for so many shapes of its inputs; calls with others run eagerly.
    on_compiled
        Called with each model that was compiled; its `report` says what computes each layer.
    compile
        Any other argument of `tvm_sparse.compile`: ``log``, ``target`` (default: where the model's tensors are),
        ``strict_nonfinite``.
    """

    density: float = 0.5
    on_change: OnChange = "rebuild"
    batch: int | Sequence[int] | None = None
    max_shapes: int = 8
    on_compiled: Callable[[AnyModel], object] | None = None
    compile: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, given: Mapping[str, Any], mode: str | None) -> Options:
        """What `torch.compile` was given."""
        if mode is not None:
            hint = "search kernels with tvm_sparse.tune and pass options={'log': 'my.jsonl'}"
            raise UsageError(WHERE, "the back end tvm_sparse has no modes", mode, "none", hint)
        own = {each.name for each in fields(cls)} - {"compile"}
        passed_on = set(inspect.signature(compile_model).parameters) - _OWN
        unknown = sorted(set(given) - own - passed_on)
        if unknown:
            raise UsageError(WHERE, "unknown option", ", ".join(unknown), ", ".join(sorted(own | passed_on)))
        return cls(
            **{name: value for name, value in given.items() if name in own},
            compile={name: value for name, value in given.items() if name in passed_on},
        )

    def __post_init__(self) -> None:
        if not isinstance(self.density, (int, float)) or not 0 <= self.density <= 1:
            raise UsageError(WHERE, "option density is not usable", self.density, "a number from 0 to 1")
        if self.on_change not in get_args(OnChange):
            raise UsageError(WHERE, "option on_change is unknown", self.on_change, ", ".join(get_args(OnChange)))
        if self.batch is not None:
            batch_sizes(self.batch)
        if type(self.max_shapes) is not int or self.max_shapes < 1:
            raise UsageError(WHERE, "option max_shapes is not usable", self.max_shapes, "a whole number of 1 or more")
        if self.on_compiled is not None and not callable(self.on_compiled):
            raise UsageError(WHERE, "option on_compiled cannot be called", self.on_compiled, "a function, or None")
