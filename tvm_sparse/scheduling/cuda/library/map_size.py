"""Sizes of a convolution's maps, as the kernels with weights as data see them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from tvm_sparse.conv.spec import ConvSpec

# Channels of a group at most for which a convolution counts as grouped: a block stages all of them.
MAX_GROUPED = 64
T = TypeVar("T", bound="MapSizes")


def is_pointwise(spec: ConvSpec) -> bool:
    """Whether each output reads the inputs at its own place alone."""
    return (spec.r, spec.s, spec.stride, spec.padding) == (1, 1, (1, 1), (0, 0, 0, 0))


def is_grouped(spec: ConvSpec) -> bool:
    """Whether channels are in groups of several each, but few."""
    return spec.groups > 1 and 1 < spec.c // spec.groups <= MAX_GROUPED


@dataclass(frozen=True)
class MapSizes:
    """A convolution's maps; those of a 1x1 convolution without stride and padding have one row."""

    spec: ConvSpec

    @cached_property
    def is_pointwise(self) -> bool:
        """Whether pixels read what lies where they lie, so that rows mean nothing."""
        return is_pointwise(self.spec)

    @cached_property
    def in_size(self) -> tuple[int, int]:
        """Height and width of an input map."""
        spec = self.spec
        return (1, spec.h * spec.w) if self.is_pointwise else (spec.h, spec.w)

    @cached_property
    def out_size(self) -> tuple[int, int]:
        """The same of an output map."""
        spec = self.spec
        return (1, spec.out_h * spec.out_w) if self.is_pointwise else (spec.out_h, spec.out_w)

    def known(self, names: Iterable[str]) -> dict[str, Any]:
        """Fields of a tiling and what follows from them, by name."""
        return {name: getattr(self, name) for name in names}

    @classmethod
    def of(cls: type[T], known: Mapping[str, Any], **decisions: Any) -> T:
        """A tiling with other `decisions` than the one of which all is `known` that does not depend on them.

        Thousands of tilings are estimated before one is chosen; this takes a tenth of the time of one more.
        """
        other = object.__new__(cls)
        vars(other).update(known, **decisions)
        return other

    @classmethod
    def together(cls: type[T], known: Sequence[Mapping[str, Any]], places: np.ndarray, **decisions: np.ndarray) -> T:
        """As `of`, many as one: numbers are arrays. `places` says of which of the `known` each tiling is."""
        columns = {name: _taken([each[name] for each in known], places) for name in known[0]}
        return cls.of(columns, **decisions)


def _taken(values: Sequence[Any], places: np.ndarray) -> Any:
    """Numbers as an array, tuples of them as a tuple of arrays; anything else is the same everywhere."""
    if isinstance(values[0], tuple):
        return tuple(np.array(each)[places] for each in zip(*values, strict=True))
    is_number = isinstance(values[0], int) and not isinstance(values[0], bool)
    return np.array(values)[places] if is_number else values[0]
