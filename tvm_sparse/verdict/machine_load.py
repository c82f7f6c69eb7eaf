"""What else the machine did while models were timed, and whether that makes the times worthless."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvm_sparse.measure.quartiles import Quartiles

STAT = Path("/proc/stat")
# Columns of a core's line in /proc/stat, "man proc_stat": what ran there, and what the machine's host gave to others.
_RAN, _STOLEN = (0, 1, 2, 5, 6), 7
# More than that of all cores together is no background noise; and of quartiles, apart from each other.
MOST_STOLEN, MOST_OTHERS_CORES, MOST_SPREAD = 0.03, 0.15, 0.25


@dataclass(frozen=True)
class Snapshot:
    """Seconds until now: on a clock, of the cores that this process may use, and of the host's other guests."""

    clock_s: float
    ran_s: float
    stolen_s: float

    @classmethod
    def take(cls) -> Snapshot | None:
        """Of this moment; None where the system does not tell."""
        if not STAT.is_file() or not hasattr(os, "sched_getaffinity"):
            return None
        names = {f"cpu{core}" for core in os.sched_getaffinity(0)}
        lines = [line.split() for line in STAT.read_text().splitlines() if line.startswith("cpu")]
        cores = [[int(each) for each in values] for name, *values in lines if name in names]
        tick_s = 1 / os.sysconf("SC_CLK_TCK")
        ran, stolen = sum(core[i] for core in cores for i in _RAN), sum(core[_STOLEN] for core in cores)
        return cls(time.monotonic(), ran * tick_s, stolen * tick_s)


@dataclass(frozen=True)
class MachineLoad:
    """Of a span of time.

    * `cores`: that this process may use.
    * `others_cores`: how many of them other processes took, on average.
    * `stolen_share`: what the machine's host gave to others, of all cores' time.
    * `load_average`: of the last minute, by Linux; it counts what ran before, too.
    """

    cores: int
    others_cores: float
    stolen_share: float
    load_average: float

    @classmethod
    def between(cls, start: Snapshot | None, end: Snapshot | None, own_s: float) -> MachineLoad | None:
        """Between two moments in which our processes ran for `own_s`; None where the system does not tell."""
        if start is None or end is None or end.clock_s <= start.clock_s:
            return None
        span_s, cores = end.clock_s - start.clock_s, len(os.sched_getaffinity(0))
        others = max(0.0, end.ran_s - start.ran_s - own_s) / span_s
        return cls(cores, others, (end.stolen_s - start.stolen_s) / span_s / cores, os.getloadavg()[0])

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {name: round(value, 3) for name, value in vars(self).items()}


def why_unreliable(load: MachineLoad | None, threads: int, times_us: Mapping[str, Sequence[float]]) -> str:
    """Why times are not to be trusted, in a few words; empty where nothing speaks against them."""
    if load is not None and load.stolen_share > MOST_STOLEN:
        return f"other work on this machine's host, which took {load.stolen_share:.0%} of the time"
    # What runs on cores that we leave free does not disturb.
    if load is not None and load.others_cores > max(MOST_OTHERS_CORES, load.cores - threads):
        return f"other work on this machine, {load.others_cores:.1f} of {load.cores} cores"
    spread = max(map(_spread, times_us.values()), default=0.0)
    return f"repeated timings differ by {spread:.0%}" if spread > MOST_SPREAD else ""


def _spread(times_us: Iterable[float]) -> float:
    found = Quartiles.of(list(times_us))
    return (found.high - found.low) / found.median
