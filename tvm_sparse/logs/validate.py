"""Rebuild the kernels of a log and verify them again: by structure everywhere, by numbers where they run."""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from tvm.target import Target

from tvm_sparse.codegen.ir_digest import ir_digest
from tvm_sparse.conv.random_weights import weight_like
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.errors import TvmSparseError, UsageError
from tvm_sparse.logs.record import TuningRecord
from tvm_sparse.measure.measurer import Measurer
from tvm_sparse.measure.outcome import Candidate, MeasureOptions
from tvm_sparse.measure.safe_replay import SafeReplay
from tvm_sparse.schedules.lookup import find_space
from tvm_sparse.target.compatibility import why_not_here
from tvm_sparse.target.fingerprint import fingerprint_of
from tvm_sparse.target.resolve import resolve_target

# Verified kernels are run, not timed.
OPTIONS = MeasureOptions(repeats=1, min_repeat_ms=0.01, cold=False)
# Weights by the convolution and their value digest.
Weights = Mapping[tuple[ConvSpec, str], np.ndarray]


@dataclass(frozen=True)
class Verdict:
    """What became of a record.

    ``verified``: its kernel was built, run and compared with the reference, `error` is the fraction of the bound;
    ``structure``: it was scheduled again, but cannot run here; ``failed``: `note` says why. `kernel` is the SHA-256 of
    the scheduled function: the same log and versions give the same.
    """

    record: TuningRecord
    result: Literal["verified", "structure", "failed"]
    note: str
    kernel: str = ""
    error: float | None = None


def validate(records: Iterable[TuningRecord], weights: Weights | None = None) -> Iterator[Verdict]:
    """Verify records again, weight by weight.

    Where `weights` lacks a record's own, its kernel is built with a random one of the same structure and density.
    """
    groups: dict[tuple[ConvSpec, SparsityPattern, str], list[TuningRecord]] = defaultdict(list)
    for record in records:
        groups[record.spec, record.pattern, json.dumps(record.target, sort_keys=True)].append(record)
    with SafeReplay() as replay:
        for (spec, pattern, _), group in groups.items():
            sound = []
            for record in group:
                verdict = _by_structure(record, replay)
                if verdict.note:
                    yield verdict
                else:
                    sound.append(verdict)
            if sound:
                weight = (weights or {}).get((spec, pattern.value_digest))
                yield from _by_numbers(sound, resolve_target(group[0].target), weight)


def _by_structure(record: TuningRecord, replay: SafeReplay) -> Verdict:
    """Schedule a record's kernel again; a verdict without a note if it can be verified by numbers."""
    try:
        target = resolve_target(record.target)
        here = fingerprint_of(target)
        for key in ("kind", "arch", "threads"):
            if record.fingerprint[key] != here[key]:
                raise UsageError("fingerprint", f"{key} is not that of the target", record.fingerprint[key], here[key])
        each = find_space(record.schedule, record.spec, record.pattern, target)
        schedule = replay.scheduled(each, record.spec, record.pattern, target, record.chosen)
    except TvmSparseError as error:
        return Verdict(record, "failed", str(error))
    kernel = ir_digest(schedule.mod["main"])
    made = record.fingerprint["tvm"]
    obstacle = f"made with TVM {made}, this is {here['tvm']}" if made != here["tvm"] else why_not_here(target)
    return Verdict(record, "structure", f"not run: {obstacle}" if obstacle else "", kernel)


def _by_numbers(sound: list[Verdict], target: Target, weight: np.ndarray | None) -> Iterator[Verdict]:
    """Build and run the kernels of records of one weight."""
    first = sound[0].record
    note = "with its own weight"
    if weight is None:
        weight = weight_like(first.spec, first.pattern)
        note = f"with a random weight of density {SparsityPattern.of(weight).density:.3g}"
    candidates = [Candidate(verdict.record.schedule, verdict.record.chosen) for verdict in sound]
    with Measurer(first.spec, weight, target, OPTIONS) as measurer:
        for verdict, outcome in zip(sound, measurer.measure(candidates), strict=True):
            if outcome.status == "ok":
                yield replace(verdict, result="verified", note=note, error=outcome.error)
            else:
                yield replace(verdict, result="failed", note=f"{note}: {outcome.status}: {outcome.cause}")


def summary(verdicts: Iterable[Verdict]) -> dict[str, Any]:
    """Counts by result and one row a record, as JSON values."""
    rows = [
        {
            "convolution": verdict.record.spec.key,
            "density": verdict.record.pattern.density,
            "schedule": verdict.record.schedule,
            "machine": " ".join(verdict.record.fingerprint[key] for key in ("kind", "arch", "threads")),
            "result": verdict.result,
            "error": verdict.error,
            "note": verdict.note,
            "kernel": verdict.kernel,
        }
        for verdict in verdicts
    ]
    counts = {name: sum(row["result"] == name for row in rows) for name in ("verified", "structure", "failed")}
    return {**counts, "records": rows}
