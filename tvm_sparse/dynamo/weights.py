"""The weights that code was compiled for: whether a call brings the same, and when they are gone."""

import operator
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any

# Torch counts the writes to a tensor, but not those through ``.data``.
_version = operator.attrgetter("_version")


class Weights:
    """Tensors as they are now, and `table`, what was compiled for them by the shapes of inputs.

    Nothing here keeps the tensors alive: where one is freed, so is the table.
    """

    def __init__(self, tensors: Sequence[Any]):
        self.table: dict[Hashable, Callable[[Sequence[Any]], Any]] = {}
        self._ids: tuple[int, ...] | None = tuple(map(id, tensors))
        self._versions = tuple(map(_version, tensors))
        # An id may be given to another object once its own is gone.
        self._references = [weakref.ref(tensor, self._end) for tensor in tensors]

    def _end(self, _reference: object) -> None:
        self._ids = None
        self.table.clear()

    def are(self, tensors: Sequence[Any]) -> bool:
        """Whether these are the same tensors, and nothing was written to them."""
        return tuple(map(id, tensors)) == self._ids and tuple(map(_version, tensors)) == self._versions

    def first_changed(self, tensors: Sequence[Any]) -> int:
        """Position of the first tensor that is another one, or was written to."""
        now = zip(map(id, tensors), map(_version, tensors), strict=True)
        before = zip(self._ids or (0,) * len(tensors), self._versions, strict=True)
        return next(i for i, (one, other) in enumerate(zip(now, before, strict=True)) if one != other)
