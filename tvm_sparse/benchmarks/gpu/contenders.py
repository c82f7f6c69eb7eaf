"""The contenders of one case of `bench_table2.py` while they run, and what decides which take part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tvm_sparse.benchmarks import operators
from tvm_sparse.benchmarks.baselines import Peer, all_peers
from tvm_sparse.benchmarks.gpu.cuda_graph_clock import Replay
from tvm_sparse.benchmarks.gpu.kernels import Ours
from tvm_sparse.benchmarks.results import Contender, rounded


@dataclass(frozen=True)
class Settings:
    """How cases are run.

    `peers` are prefixes of the families to run; `rounds` at most, fewer where a case would take longer than `seconds`;
    the name of the contender at work stands in `progress`. `on_gpu` False: a trial run on the CPU.
    """

    peers: tuple[str, ...]
    rounds: int
    seconds: float
    seed: int
    escort_library: str
    progress: str
    on_gpu: bool = True


@dataclass
class Entry:
    """A contender while it runs."""

    peer: Peer
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
    operator: int, densities: Sequence[float], ours: Sequence[tuple[float, Ours]], settings: Settings
) -> Iterator[tuple[Entry, np.ndarray]]:
    """Every contender with the weight it is verified with."""
    weights = {density: operators.weight(operator, density, settings.seed) for density in densities}
    library = Path(settings.escort_library) if settings.escort_library else None
    rivals = [peer for peer in all_peers(library) if peer.family.startswith(settings.peers)]
    for density, peer in [*ours, *((density, peer) for peer in rivals for density in densities)]:
        if not peer.sparse and density != densities[0]:
            continue
        result = Contender(
            family=peer.family,
            variant=peer.variant,
            density=density if peer.sparse else None,
            exact=peer.exact,
            tolerance=peer.tolerance,
            status="failed",
            code_bytes=getattr(peer, "code_bytes", None),
            predicted_us=getattr(peer, "predicted_us", None),
        )
        yield Entry(peer, result), weights[density]
