"""Tune operators whose zeros have a pattern, schedule by schedule, and show each one's best against cuDNN.

    python scripts/table2/patterns.py --patterns slice64c,vector32 --batch 64 -o patterns.jsonl
    python scripts/table2/patterns.py --patterns slice64c --dtype float16 --cases 6,9,512-14 -o patterns.jsonl
    python scripts/table2/patterns.py --patterns slice64c,vector32 --batch 64 -o patterns.jsonl --table patterns.md

Run it again to continue; with ``--table`` nothing is tuned and no GPU is needed. Cases are operators of Table 2, and
``512-28`` and ``512-14``: 512 filters of 512x3x3 on maps of that size. Weights are normal random, and the units of a
pattern with most magnitude are kept. Times have cold code and rotating inputs, each in turns with those of cuDNN, whose
tensors are of the same type: the ratio is to the fastest of its variants, TF32 among them.
"""

import argparse
import statistics
from dataclasses import replace
from itertools import product
from pathlib import Path

import command_line
import numpy as np

from benchmarks import operators
from tvm_sparse.autotune import session
from tvm_sparse.autotune.options import TuneOptions
from tvm_sparse.autotune.progress.live_progress import LiveProgress
from tvm_sparse.conv.dtypes import DTYPES, FLOAT32
from tvm_sparse.conv.random_weights import normal_weight
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.conv.storage import STORAGE, rounded
from tvm_sparse.conv.structure import Structure
from tvm_sparse.conv.structured_mask import structured_mask
from tvm_sparse.display.consoles import progress_console
from tvm_sparse.logs.record import TuningRecord
from tvm_sparse.logs.tuning_log import TuningLog
from tvm_sparse.measure.outcome import MeasureOptions
from tvm_sparse.target.resolve import resolve_target

Case = tuple[str, int, str]
# Bytes a second of an H200's memory (docs/lab/cuda-patterns.md).
MEMORY_BYTES_S = 4.3e12


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="LOG", help="log to write or continue")
    parser.add_argument("--cases", default="6,7,9,10,512-28,512-14", help="default: %(default)s")
    parser.add_argument("--batch", type=command_line.numbers, default="64", help="batch sizes (default: %(default)s)")
    parser.add_argument("--patterns", default="slice64c", help="of the zeros (default: %(default)s)")
    parser.add_argument("--density", type=float, default=0.1, help="of the weights (default: %(default)s)")
    parser.add_argument("--dtype", choices=DTYPES, default=FLOAT32, help="of the tensors (default: %(default)s)")
    parser.add_argument("--schedules", default="slice_cuda", help="one after the other (default: %(default)s)")
    parser.add_argument("--starts", type=Path, nargs="*", default=[], metavar="LOG", help="logs whose decisions to try")
    parser.add_argument("--trials", type=int, default=24, help="candidates a schedule (default: %(default)s)")
    parser.add_argument("--seconds", type=float, metavar="S", help="time for a case and schedule")
    parser.add_argument("--timeout", type=float, default=60, help="seconds a build may take (default: %(default)s)")
    parser.add_argument("--table", type=Path, metavar="PAGE", help="write a table of the log instead")
    return parser.parse_args()


def spec_of(case: str, batch: int, dtype: str) -> ConvSpec:
    """The convolution of an operator, or of one of 512 filters."""
    channels, _, size = case.partition("-")
    if not size:
        return replace(operators.spec(int(case), batch), dtype=dtype)
    return ConvSpec(batch, int(channels), int(size), int(size), int(channels), 3, 3, padding=(1, 1, 1, 1), dtype=dtype)


def task(case: Case, density: float, dtype: str) -> session.Task:
    """A convolution and its weight."""
    name, batch, pattern = case
    spec = spec_of(name, batch, dtype)
    weight = normal_weight(spec, density if pattern == "unstructured" else 1.0, [0, batch])
    if pattern != "unstructured":
        structure = Structure.named(pattern).fitted(spec.k)
        weight = np.where(structured_mask(np.abs(weight), structure, 1 - density), weight, np.float32(0))
    weight = rounded(weight, dtype)
    return session.Task((f"{name}, batch {batch}, {pattern}",), spec, weight, SparsityPattern.of(weight))


def rows(log: TuningLog, case: Case, found: session.Task) -> list[str]:
    """Lines of a case, one a schedule, the fastest first."""
    own = [each for each in log.records if each.spec == found.spec and each.pattern == found.pattern]
    right = [each for each in own if each.status == "ok" and not each.is_dense]
    best: dict[str, TuningRecord] = {}
    for each in sorted(right, key=_ratio):
        best.setdefault(each.schedule, each)
    spec = found.spec
    elements = spec.n * (spec.c * spec.h * spec.w + spec.k * spec.out_h * spec.out_w)
    roof_us = elements * STORAGE[spec.dtype].size_bytes / MEMORY_BYTES_S * 1e6
    lines = []
    for schedule, each in best.items():
        name, rival_us = min(_rivals(each).items(), key=lambda rival: rival[1])
        own_us = each.time_us
        trials = sum(record.schedule == schedule for record in own)
        cells = (*case, schedule, f"{own_us:.1f}", f"{roof_us / own_us:.0%}", name, f"{rival_us:.1f}")
        lines.append(f"| {' | '.join(map(str, cells))} | {rival_us / own_us:.2f} | {trials} |")
    return lines


def _rivals(record: TuningRecord) -> dict[str, float]:
    libraries = record.library_cold_times_us if record.is_cold else record.library_times_us
    times = {record.baseline: record.counting_dense_times_us, **libraries}
    return {name: statistics.median(each) for name, each in times.items() if each}


def _ratio(record: TuningRecord) -> float:
    return record.time_us / min(_rivals(record).values())


HEAD = """| case | batch | pattern | schedule | us | of the memory roof | best cuDNN | us | ratio | trials |
|---|---|---|---|---|---|---|---|---|---|"""


def main() -> None:
    """Tune what the command line asks for, or show what is known of it."""
    given = arguments()
    cases = list(product(given.cases.split(","), given.batch, given.patterns.split(",")))
    log = TuningLog(given.output, *given.starts)
    if given.table:
        lines = [line for case in cases for line in rows(log, case, task(case, given.density, given.dtype))]
        given.table.write_text("\n".join([HEAD, *lines]) + "\n")
        return
    measure = MeasureOptions(build_timeout_s=given.timeout)
    for case in cases:
        tuned = task(case, given.density, given.dtype)
        for schedule in given.schedules.split(","):
            how = TuneOptions(
                given.trials,
                seconds=given.seconds,
                schedules=(schedule,),
                patience=None,
                dense_trials=0,
                measure=measure,
            )
            progress = LiveProgress(progress_console(), limit_s=given.seconds)
            session.tune_tasks([tuned], resolve_target("cuda"), log, how, progress)
        print("\n".join(rows(log, case, tuned)), flush=True)


if __name__ == "__main__":
    command_line.end_as(main)
