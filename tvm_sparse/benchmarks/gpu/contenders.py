"""The contenders of one case of a benchmark while they run, and what decides which take part."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tvm_sparse.benchmarks import operators
from tvm_sparse.benchmarks.baselines import Baseline, all_baselines
from tvm_sparse.benchmarks.gpu.cuda_graph_clock import Replay
from tvm_sparse.benchmarks.results import Contender, rounded


@dataclass(frozen=True)
class Settings:
    """How cases are run.

    `baselines` are prefixes of the families to run; `rounds` at most, fewer where a case would take longer than
    `seconds`; the name of the contender at work stands in `progress`. `on_gpu` False: a trial run on the CPU.
    """

    baselines: tuple[str, ...]
    rounds: int
    seconds: float
    seed: int
    escort_library: str
    progress: str
    on_gpu: bool = True


@dataclass
class Entry:
    """A contender while it runs."""

    method: Baseline
    result: Contender
    cold: Replay | None = None
    warm: Replay | None = None
    cold_calls: int = 1
    warm_calls: int = 1

    def add(self, **times_us: Sequence[float]) -> None:
        """Append times of replays, as microseconds a call."""
        calls = {"cold_us": self.cold_calls, "warm_us": self.warm_calls}
        values: dict[str, Any] = {
            name: (*getattr(self.result, name), *rounded(each / calls[name] for each in added))
            for name, added in times_us.items()
        }
        self.result = replace(self.result, **values)


def all_entries(
    operator: int, densities: Sequence[float], ours: Sequence[tuple[float, Baseline]], settings: Settings
) -> Iterator[tuple[Entry, np.ndarray]]:
    """Every contender with the weight it is verified with."""
    weights = {density: operators.weight(operator, density, settings.seed) for density in densities}
    library = Path(settings.escort_library) if settings.escort_library else None
    baselines = [each for each in all_baselines(library) if each.family.startswith(settings.baselines)]
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
        yield Entry(each, result), weights[density]
