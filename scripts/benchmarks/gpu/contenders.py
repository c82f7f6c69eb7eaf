"""The contenders of one case of a benchmark while they run, and what decides which take part."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import operators
from benchmarks.baselines import Baseline, all_baselines
from benchmarks.gpu.cuda_graph_clock import Call
from benchmarks.results import Contender, Kind, rounded
from tvm_sparse.conv.dtypes import FLOAT32

# Kernels of ours for one operator and batch, each with the density of the weight that it was built for.
Kernels = list[tuple[float, Baseline]]


@dataclass(frozen=True)
class Settings:
    """How cases are run.

    `baselines` are prefixes of the families to run; `rounds` at most, fewer where a case would take longer than
    `seconds`, and as many again with `cold_code`; the name of the contender at work stands in `progress`. `on_gpu`
    False: a trial run on the CPU, which needs no libraries. Ours have tensors of type `dtype`, whose numbers all get.
    """

    baselines: tuple[str, ...]
    rounds: int
    seconds: float
    seed: int
    escort_library: Path | None
    progress: str
    on_gpu: bool = True
    cold_code: bool = False
    dtype: str = FLOAT32
    evictor_library: Path | None = None


@dataclass
class Entry:
    """A contender while it runs, and the weight that it is verified with.

    `calls` have an input each; `replays` are ``cold``, ``warm`` and ``cold_code``, each with the number of calls it
    makes.
    """

    method: Baseline
    weight: np.ndarray
    result: Contender
    calls: list[Call] = field(default_factory=list)
    replays: dict[Kind, tuple[Any, int]] = field(default_factory=dict)

    def add(self, kind: Kind, time_us: float) -> None:
        """Append the time of a replay, as microseconds a call."""
        name, calls = f"{kind}_us", self.replays[kind][1]
        times: dict[str, Any] = {name: (*self.result.times_us(kind), *rounded([time_us / calls]))}
        self.result = replace(self.result, **times)


def all_entries(operator: int, densities: Sequence[float], ours: Kernels, settings: Settings) -> list[Entry]:
    """Every contender."""
    entries = []
    weights = {each: operators.weight(operator, each, settings.seed, settings.dtype) for each in densities}
    baselines = [each for each in all_baselines(settings.escort_library) if each.family.startswith(settings.baselines)]
    for density, each in [*ours, *((density, each) for each in baselines for density in densities)]:
        if not each.sparse and density != densities[0]:
            continue
        result = Contender(
            family=each.family,
            variant=each.variant,
            density=density if each.sparse else None,
            exact=each.exact,
            tolerance=each.tolerance,
            status="failed",
            code_bytes=each.code_bytes,
            predicted_us=each.predicted_us,
        )
        entries.append(Entry(each, weights[density], result))
    return entries
