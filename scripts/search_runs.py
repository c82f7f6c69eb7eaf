"""Searches of the same kernels, guided and at random, from tuning logs: the best time after each folded trial."""

from __future__ import annotations

import math
import os
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import table2

from tvm_sparse.conv import ConvSpec
from tvm_sparse.errors import LogError
from tvm_sparse.log import TuningLog
from tvm_sparse.records import FINGERPRINT_KEYS, TuningRecord

# Schedules whose kernels fold the weight into code; trials of others, such as the dense rival's, are not counted.
FOLDED = ("folded", "generated")
# A search has arrived where its best is no slower than this times the best known.
NEAR = 1.1


@dataclass(frozen=True, kw_only=True)
class SearchRun:
    """One search for one weight: `ratios` are its best time after each folded trial over the best known of all logs.

    A ratio is infinite before the first success. `seconds`: from the first to the last time stamp; None for one record.
    """

    seed: int
    ratios: tuple[float, ...]
    seconds: float | None

    @property
    def arrival(self) -> float:
        """The trial from which the best is within `NEAR` of the best known; infinite where it never is."""
        return next((trial for trial, ratio in enumerate(self.ratios, 1) if ratio <= NEAR), math.inf)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A convolution and a weight on one machine, and the searches that logs hold of it, by name."""

    name: str
    spec: ConvSpec
    density: float
    value_digest: str
    arch: str
    best_us: float
    searches: Mapping[str, tuple[SearchRun, ...]]

    def after(self, search: str, trials: int) -> float | None:
        """Median ratio of a search's runs after so many trials; None where no run has made so many."""
        return _median([run.ratios[trials - 1] for run in self.searches.get(search, ()) if len(run.ratios) >= trials])

    def arrival(self, search: str) -> float | None:
        """Median `SearchRun.arrival`; None where there is no run."""
        return _median([run.arrival for run in self.searches.get(search, ())])

    def seconds(self, search: str) -> float | None:
        """Median seconds of a search's runs; None where no log tells them."""
        return _median([run.seconds for run in self.searches.get(search, ()) if run.seconds is not None])


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def cases(logs: Mapping[str, Sequence[Path]]) -> list[Case]:
    """All cases of which `logs`, paths by the name of the search that wrote them, hold a folded kernel that works.

    A run is what one log holds of one seed. Its trials are put in the order of their time stamps.

    Raises
    ------
    LogError
        A log, or a line of it, cannot be read (trials that are missing would be counted wrong), or there is no folded
        kernel in any.
    """
    found: dict[tuple[str, ...], dict[str, list[list[TuningRecord]]]] = {}
    for search, paths in logs.items():
        for path in paths:
            for key, run in _runs(path):
                found.setdefault(key, {}).setdefault(search, []).append(run)
    made = [case for searches in found.values() if (case := _case(searches)) is not None]
    if not made:
        raise LogError(", ".join(str(path) for paths in logs.values() for path in paths), "no folded kernel is in it")
    return _told_apart(sorted(made, key=lambda case: (case.name, case.arch, case.value_digest)))


def _runs(path: Path) -> list[tuple[tuple[str, ...], list[TuningRecord]]]:
    """(convolution, weight, machine) and records of each run of a log."""
    groups: dict[tuple[tuple[str, ...], int], list[TuningRecord]] = defaultdict(list)
    log = TuningLog(os.devnull, path)
    for line in log.rejected:
        raise LogError(f"{path}, line {line.line_number}", line.reason)
    for record in log.records:
        machine = (record.fingerprint[key] for key in FINGERPRINT_KEYS)
        groups[(record.spec.key, record.pattern.value_digest, *machine), record.seed].append(record)
    return [(key, sorted(records, key=_moment)) for (key, _), records in groups.items()]


def _case(searches: Mapping[str, list[list[TuningRecord]]]) -> Case | None:
    records = [record for runs in searches.values() for run in runs for record in run]
    best_us = min(map(_time_us, filter(_is_folded, records)), default=math.inf)
    if best_us == math.inf:
        return None
    first = records[0]
    density = float(f"{first.pattern.density:.3g}")
    return Case(
        name=_name(first.spec, density),
        spec=first.spec,
        density=density,
        value_digest=first.pattern.value_digest,
        arch=str(first.fingerprint["arch"]),
        best_us=best_us,
        searches={
            search: tuple(_run(run, best_us) for run in runs if any(map(_is_folded, run)))
            for search, runs in searches.items()
        },
    )


def _run(records: Sequence[TuningRecord], best_known_us: float) -> SearchRun:
    ratios, best_us = [], math.inf
    for record in filter(_is_folded, records):
        best_us = min(best_us, _time_us(record))
        ratios.append(best_us / best_known_us)
    seconds = (_moment(records[-1]) - _moment(records[0])).total_seconds() if len(records) > 1 else None
    return SearchRun(seed=records[0].seed, ratios=tuple(ratios), seconds=seconds)


def _name(spec: ConvSpec, density: float) -> str:
    operator = next((each for each in table2.OPERATORS if table2.spec(each, spec.n) == spec), None)
    return f"{spec.key}, density {density:g}" if operator is None else table2.name(operator, spec.n, density)


def _told_apart(found: Sequence[Case]) -> list[Case]:
    """Cases with machine and weight in the names of those that would be called the same."""
    names = [case.name for case in found]
    apart = []
    for case in found:
        again = names.count(case.name) > 1
        name = f"{case.name} ({case.arch}, weight {case.value_digest[:6]})" if again else case.name
        apart.append(replace(case, name=name))
    return apart


def _is_folded(record: TuningRecord) -> bool:
    return record.schedule.startswith(FOLDED)


def _time_us(record: TuningRecord) -> float:
    """Of a kernel that works; infinite for others."""
    return record.time_us if record.status == "ok" else math.inf


def _moment(record: TuningRecord) -> datetime:
    return datetime.fromisoformat(record.timestamp.replace("Z", "+00:00"))
