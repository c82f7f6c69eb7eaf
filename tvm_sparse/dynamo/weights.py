"""The weights that code was compiled for: whether a call brings the same, and when they are gone."""

import operator
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any

_version = operator.attrgetter("_version")


def _versions(tensors: Sequence[Any]) -> tuple[int, ...]:
    """How often each tensor was written to, but for writes through ``.data``; -1 for inference tensors."""
    try:
        return tuple(map(_version, tensors))
    except RuntimeError:
        return tuple(-1 if tensor.is_inference() else tensor._version for tensor in tensors)


class Weights:
    """Tensors as they are now, and `table`, what was compiled for them by the shapes of inputs.

    Nothing here keeps the tensors alive: where one is freed, so is the table.
    """

    def __init__(self, tensors: Sequence[Any]):
        self.table: dict[Hashable, Callable[[Sequence[Any]], Any]] = {}
        self._ids: tuple[int, ...] | None = tuple(map(id, tensors))
        self._versions = _versions(tensors)
        # An id may be given to another object once its own is gone.
        self._references = [weakref.ref(tensor, self._end) for tensor in tensors]

    def _end(self, _reference: object) -> None:
        self._ids = None
        self.table.clear()

    def are(self, tensors: Sequence[Any]) -> bool:
        """Whether these are the same tensors, and nothing was written to them."""
        return tuple(map(id, tensors)) == self._ids and _versions(tensors) == self._versions

    def first_changed(self, tensors: Sequence[Any]) -> int:
        """Position of the first tensor that is another one, or was written to."""
        now = zip(map(id, tensors), _versions(tensors), strict=True)
        before = zip(self._ids or (0,) * len(tensors), self._versions, strict=True)
        return next(i for i, (one, other) in enumerate(zip(now, before, strict=True)) if one != other)
