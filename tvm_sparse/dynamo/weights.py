"""The weights that code was compiled for: whether a call brings the same, and when they are gone."""

import gc
import operator
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any

_version = operator.attrgetter("_version")


class Weights:
    """Tensors as they are now, and `table`, what was compiled for them by the shapes of inputs.

    Nothing here keeps them alive: where one is freed, so is the table.

    Parameters
    ----------
    names, tensors
        The constants of a graph.
    """

    def __init__(self, names: Sequence[str], tensors: Sequence[Any]):
        self.table: dict[Hashable, Callable[[Sequence[Any]], Any]] = {}
        self._names = names
        self._ids: tuple[int, ...] | None = tuple(map(id, tensors))
        self._counters = _counters(names, tensors)
        self._versions = _versions([*tensors, *self._counters])
        # An id may be given to another object once its own is gone.
        self._references = [weakref.ref(tensor, self._end) for tensor in tensors]

    def _end(self, _reference: object) -> None:
        self._ids, self._counters = None, []
        self.table.clear()

    def are(self, tensors: Sequence[Any]) -> bool:
        """Whether these are the same tensors, and nothing was written to them."""
        return tuple(map(id, tensors)) == self._ids and _versions([*tensors, *self._counters]) == self._versions

    def first_changed(self, tensors: Sequence[Any]) -> str:
        """Name of the first tensor that is another one, or was written to."""
        now = zip(map(id, tensors), _versions(tensors), strict=True)
        before = zip(self._ids or (), self._versions, strict=False)
        changed = (name for name, one, other in zip(self._names, now, before, strict=False) if one != other)
        return next(changed, "num_batches_tracked")


def _versions(tensors: Sequence[Any]) -> tuple[int, ...]:
    """How often each tensor was written to, but for writes through ``.data``; -1 for inference tensors."""
    try:
        return tuple(map(_version, tensors))
    except RuntimeError:
        return tuple(-1 if tensor.is_inference() else tensor._version for tensor in tensors)


def _counters(names: Sequence[str], tensors: Sequence[Any]) -> list[Any]:
    """The counters of batches beside the statistics of batch norms.

    Torch does not count as a write what training does to the statistics, and the graphs of Dynamo do not say where they
    are from. But a batch norm keeps both in one dict.
    """
    statistics = [tensor for name, tensor in zip(names, tensors, strict=True) if name.endswith("running_mean")]
    owners = gc.get_referrers(*statistics) if statistics else []
    found = [owner.get("num_batches_tracked") for owner in owners if isinstance(owner, dict)]
    return [counter for counter in found if counter is not None]
