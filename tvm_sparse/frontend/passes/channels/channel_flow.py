"""Which channels of tensors can only be taken out together, and which hold one number whatever the input."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from tvm import relax
from tvm.ir import Call, Expr, Op, Var

from tvm_sparse.frontend.passes.relax_graph import Graph, is_float32, static_shape

UNKNOWN = np.nan


@dataclass(frozen=True)
class Channels:
    """The channels of a tensor.

    * `axis`: along which they lie.
    * `ids`: a number for each, int64; channels of several tensors with one number are taken out together.
    * `values`: what all elements of a channel are whatever the input, float64; `UNKNOWN` where that is no one number.
    """

    axis: int
    ids: np.ndarray
    values: np.ndarray

    def kept(self, kept: np.ndarray) -> np.ndarray:
        """Which of them stay, where `kept` says that of all ids."""
        return kept[self.ids]


@dataclass(frozen=True)
class Layer:
    """A layer that computes each of `filters`, ids (K,), from all channels of `data`.

    `used` (K, C): where its weight is not all zero. If it `pads`, known inputs other than zeros are not known there.
    """

    used: np.ndarray
    data: Channels
    filters: np.ndarray
    pads: bool

    @cached_property
    def representative(self) -> int:
        """Of the inputs that are known numbers the one that can stand for all: the farthest from zero."""
        return int(np.argmax(np.abs(np.nan_to_num(self.data.values))))

    def needed(self, kept: np.ndarray) -> np.ndarray:
        """Ids of the channels without which those of its filters that are `kept` could not be computed."""
        values = self.data.values
        # A product of Booleans, which ends at the first that holds.
        used = (kept[self.filters] @ self.used) & (values != 0)
        needed = used & np.isnan(values)
        # What others add that are known is in a bias, or in the weight of one of them.
        needed[self.representative] |= self.pads and bool((used & ~needed).any())
        return self.data.ids[needed]


@dataclass
class ChannelFlow:
    """What is known of the channels of ``main``.

    * `found`: those of each tensor, where it has some.
    * `layers`: by the variables that they are bound to.
    """

    found: dict[Var, Channels] = field(default_factory=dict)
    layers: dict[Var, Layer] = field(default_factory=dict)
    _pins: list[np.ndarray] = field(default_factory=list)
    _ties: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)
    _count: int = 0

    @classmethod
    def of(cls, graph: Graph, operators: "dict[str, Transfer]") -> "ChannelFlow":
        """Of all bindings; what `operators` does not have, or declines, needs whole tensors."""
        flow = cls()
        for var, value in graph.definitions.items():
            name = value.op.name if isinstance(value, Call) and isinstance(value.op, Op) else ""
            is_known = name in operators and static_shape(var) is not None and is_float32(var)
            channels = operators[name](flow, value, var) if is_known else None
            if channels is not None:
                flow.found[var] = channels
            else:
                flow.pin(relax.analysis.free_vars(value))
        flow.pin(graph.returned)
        return flow

    def channels(self, tensor: Expr) -> Channels:
        """Of an operand; one that nothing is known of keeps all of its channels."""
        if tensor in self.found:
            return self.found[tensor]
        shape = static_shape(tensor) or (1,)
        axis = 1 if len(shape) == 4 else len(shape) - 1
        found = Channels(axis, self.new(shape[axis]), np.full(shape[axis], UNKNOWN))
        self._pins.append(found.ids)
        if isinstance(tensor, Var):
            self.found[tensor] = found
        return found

    def new(self, count: int) -> np.ndarray:
        """Ids that no other channels have."""
        self._count += count
        return np.arange(self._count - count, self._count)

    def pin(self, tensors: Iterable[Expr]) -> None:
        """Keep all channels of some tensors."""
        self._pins += [self.found[each].ids for each in tensors if each in self.found]

    def tie(self, some: np.ndarray, others: np.ndarray) -> None:
        """Let channels of these ids, of equal shape, be taken out together only."""
        self._ties.append((some, others))

    @property
    def pinned(self) -> np.ndarray:
        """Which ids must stay, bool (ids,)."""
        pinned = np.zeros(self._count, bool)
        pinned[np.concatenate([*self._pins, np.zeros(0, int)])] = True
        return self.together(pinned)

    def together(self, needed: np.ndarray) -> np.ndarray:
        """`needed`, bool (ids,), and all that is tied to what is needed."""
        found = np.zeros(len(needed), bool)
        found[self._names[needed]] = True
        return found[self._names]

    @cached_property
    def _names(self) -> np.ndarray:
        """One number for all ids that are tied."""
        if not self._ties:
            return np.arange(self._count)
        # SciPy takes as long to import as a small model to prepare.
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        some, others = (np.concatenate(each) for each in zip(*self._ties, strict=True))
        links = coo_array((np.ones(len(some), bool), (some, others)), (self._count, self._count))
        return connected_components(links, directed=False)[1]


# The channels of the call's result, which is bound to the variable; None where its operands must stay whole.
Transfer = Callable[[ChannelFlow, Call, Var], Channels | None]
