"""LibrarySpace: what may be chosen for kernels that are written by hand (codegen/cuda), the fields of a tiling."""

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from tvm.s_tir import Schedule

from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.errors import BuildError
from tvm_sparse.scheduling.cuda.library.together import either
from tvm_sparse.scheduling.decision_kinds import OneOf
from tvm_sparse.scheduling.space import Choose, Decisions, NotApplicable, WrittenSpace, sampled
from tvm_sparse.target.gpu import GpuInfo

# Decisions that a search begins with.
STARTS = 24


class _Tiling(Protocol):
    """How a convolution is cut; `obstacle` is why the kernel cannot do it, or ""."""

    @property
    def obstacle(self) -> str: ...


T = TypeVar("T", bound=_Tiling)


class LibrarySpace(WrittenSpace, Generic[T]):
    """The space of all tilings of a convolution that an estimate ranks, best first."""

    def __init__(self, name: str, variant: str, spec: ConvSpec, gpu: GpuInfo):
        super().__init__(name, variant)
        self.spec, self.gpu = spec, gpu

    @property
    @abstractmethod
    def candidates(self) -> Mapping[str, Sequence[Any]]:
        """Decisions and their values."""

    @abstractmethod
    def tilings(self) -> Iterator[T]:
        """Those that are worth a look, whether or not the kernel can do them."""

    @abstractmethod
    def tiling(self, decisions: Mapping[str, Any]) -> T:
        """The tiling of decisions by name."""

    @abstractmethod
    def obstacle(self, tiling: T) -> str:
        """Why no kernel of a tiling can be made on this GPU, or ""."""

    @abstractmethod
    def estimated_us(self, tiling: T) -> float:
        """Estimated time in microseconds."""

    @abstractmethod
    def counts(self, tiling: T) -> list[float]:
        """What the cost model is told of a tiling besides its decisions and its estimated time."""

    @abstractmethod
    def packed_for(self, weight: np.ndarray, tiling: T) -> tuple[np.ndarray, int]:
        """A weight as the kernel reads it, and the bytes of shared memory that a block then needs."""

    def apply(self, sch: Schedule, choose: Choose) -> None:
        default = self.ranked[0][1] if choose.given is None else None
        for name, values in self.candidates.items():
            self.decide(sch, choose, name, values, getattr(default, name) if default is not None else values[0])

    @cached_property
    def choices(self) -> dict[str, Any]:
        return {name: OneOf(tuple(sorted(values))) for name, values in self.candidates.items()}

    @cached_property
    def ranked(self) -> list[tuple[float, T]]:
        """Tilings that can be made, by their estimated time in microseconds."""
        found = [(self.estimated_us(each), each) for each in self.tilings() if not self.obstacle(each)]
        return sorted(found, key=lambda each: each[0])

    def ranked_together(
        self, every: T, make: Callable[[int], T], grid: Sequence[Any], shared_bytes: Any
    ) -> list[tuple[float, T]]:
        """As `ranked`, of tilings that kernels can do: all are `every`, `make` makes one, by its place among them.

        Thousands are estimated before one is chosen, in a tenth of the time where their numbers are arrays.
        """
        fits = shared_bytes <= self.gpu.block_shared_bytes
        for blocks, most in zip(grid, self.gpu.grid_blocks, strict=False):
            fits = fits & (blocks <= most)
        times_us = np.where(fits, self.estimated_us(every), math.inf)
        order = times_us.argsort(kind="stable")[: int(fits.sum())]
        return [(float(times_us[place]), make(int(place))) for place in order]

    def lacks_shared_memory(self, needed_bytes: int) -> str:
        """Why a block that should need so many bytes cannot be launched, or ""."""
        limit = self.gpu.block_shared_bytes
        is_too_much = needed_bytes > limit
        return f"about {needed_bytes} bytes of shared memory are needed and there are {limit}" if is_too_much else ""

    def exceeds_grid(self, *blocks: int) -> str:
        """Why so many blocks along a grid's axes, from the first on, cannot be launched, or ""."""
        too_many = [pair for pair in zip(blocks, self.gpu.grid_blocks, strict=False) if pair[0] > pair[1]]
        return "{} thread blocks along an axis, at most {}".format(*too_many[0]) if too_many else ""

    def waves(self, blocks: Any, cluster: Any) -> Any:
        """How often a GPU is filled with so many blocks, one a multiprocessor, in clusters of `cluster`."""
        return -(-blocks // either(cluster > 2, self.gpu.cluster_multiprocessors, self.gpu.multiprocessors))

    def starts(self) -> list[Decisions]:
        return [
            {name: choice.to_json(getattr(tiling, name)) for name, choice in self.choices.items()}
            for _, tiling in self.ranked[:STARTS]
        ]

    def obstacle_of(self, sch: Schedule) -> str:
        return self.obstacle(self._tiling_of(sch))

    def features(self, sch: Schedule) -> list[float]:
        tiling = self._tiling_of(sch)
        values = [float(getattr(tiling, name)) for name in self.candidates]
        return [*values, *np.log2(self.counts(tiling)).tolist(), np.log2(self.estimated_us(tiling))]

    def estimate(self, sch: Schedule) -> float | None:
        return self.estimated_us(self._tiling_of(sch))

    def _tiling_of(self, sch: Schedule) -> T:
        return self.tiling(dict(zip(self.candidates, sampled(sch), strict=True)))

    @property
    def starts_us(self) -> list[float | None]:
        return [time_us for time_us, _ in self.ranked[:STARTS]]

    @property
    def estimate_us(self) -> float | None:
        return self.ranked[0][0]

    def packed(self, weight: np.ndarray, decisions: Mapping[str, Any]) -> tuple[np.ndarray, ...]:
        found, needed = self.packed_for(weight, self.checked(decisions))
        if needed > self.gpu.block_shared_bytes:
            sentence, limit = "a block's input and weights exceed shared memory", str(self.gpu.block_shared_bytes)
            raise BuildError(f"schedule {self.name}", sentence, needed, limit)
        return (found,)

    def checked(self, decisions: Mapping[str, Any]) -> T:
        """The tiling of decisions; BuildError where they do not fit together."""
        tiling = self.tiling(decisions)
        if tiling.obstacle:
            raise BuildError(f"schedule {self.name}", f"the decisions do not fit together: {tiling.obstacle}")
        return tiling


def why_too_old(gpu: GpuInfo) -> str:
    """Why kernels that begin while the one before them ends cannot run on a GPU, as a sentence, or ""."""
    has_launches, newer = gpu.has_dependent_launch, "which compute capability 9.0 brought"
    return "" if has_launches else f"{gpu.name} has no dependent launches, {newer}"


def offered(spaces: Iterable[LibrarySpace[Any]], gpu: GpuInfo) -> list[LibrarySpace[Any]]:
    """Those that have a tiling, fastest first; NotApplicable where none has."""
    found = sorted((each for each in spaces if each.ranked), key=lambda each: each.ranked[0][0])
    if not found:
        raise NotApplicable(f"no tile of its input and weights fits {gpu.block_shared_bytes} bytes of shared memory")
    return found
