"""Fit the constants of the cost model for folded CUDA kernels to tuning logs.

    python scripts/table2/fit_cost_model.py tuning_logs/nvidia-h200/*.jsonl.xz
    python scripts/table2/fit_cost_model.py --write own.jsonl

Least squares of the logarithm of estimated over measured time, each convolution weighing alike however many of its
kernels were timed. Logs keep winners: what makes a kernel slow is seen in few of them, so a constant leaves its value
only as far as the times insist. Shown are errors before and after; only with ``--write`` are the constants kept, for
the card whose kernels these are. All records have to be of one card.
"""

import argparse
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

import command_line
import numpy as np

from tvm_sparse.errors import LogError
from tvm_sparse.logs.record import TuningRecord
from tvm_sparse.logs.tuning_log import TuningLog
from tvm_sparse.schedules import folded_cuda
from tvm_sparse.schedules.lookup import find_space
from tvm_sparse.scheduling.cuda.folded import cost_model_fit
from tvm_sparse.scheduling.cuda.folded.cost_model import time_us
from tvm_sparse.scheduling.cuda.folded.cost_model_fit import FITS, FITTED, Fit, fitted_on
from tvm_sparse.scheduling.cuda.folded.kernel_counts import KernelCounts
from tvm_sparse.scheduling.cuda.folded.occupancy import FoldedCudaSpace
from tvm_sparse.scheduling.family import schedule_of
from tvm_sparse.target.gpu import GpuInfo, gpu_info
from tvm_sparse.target.resolve import resolve_target

# A constant is multiplied by one plus or minus a step, which is halved where that helps none of them.
FIRST_STEP, LAST_STEP = 0.2, 0.005
# What a constant that is e times its old value costs, beside an estimate that is e times the time.
PRIOR = 1.0
MARK = "FITS = {\n"


class Sample(NamedTuple):
    """A timed kernel; `weight` is one divided by the number of kernels of its convolution."""

    counts: KernelCounts
    gpu: GpuInfo
    measured_us: float
    weight: float


def counts_of(record: TuningRecord) -> tuple[KernelCounts, GpuInfo] | None:
    """What the estimate of a record's kernel is made from; None where it is not a folded CUDA kernel that was timed."""
    if record.status != "ok" or schedule_of(record.schedule) != folded_cuda.NAME:
        return None
    target = resolve_target(record.target)
    space = find_space(record.schedule, record.spec, record.pattern, target)
    if not isinstance(space, FoldedCudaSpace):
        return None
    # Counts follow from decisions alone: scheduling takes ten times as long.
    decisions = [choice.from_json(record.chosen[name]) for name, choice in space.choices.items()]
    return space.counts(decisions), gpu_info(target)


def samples(records: Iterable[TuningRecord]) -> list[Sample]:
    """Those of folded CUDA kernels that were timed."""
    found = [(each, counts) for each in records if (counts := counts_of(each)) is not None]
    often = Counter(each.spec for each, _ in found)
    return [Sample(*counts, statistics.median(each.times_us), 1 / often[each.spec]) for each, counts in found]


def log_error(fit: Fit, found: Sequence[Sample]) -> float:
    """Root of the mean squared logarithm of estimated over measured time, each convolution weighing alike."""
    errors = np.log(estimates_us(fit, found) / [each.measured_us for each in found])
    return math.sqrt(np.average(errors**2, weights=[each.weight for each in found]))


def estimates_us(fit: Fit, found: Sequence[Sample]) -> np.ndarray:
    """Estimated times, those of like samples all at once."""
    alike = defaultdict(list)
    for index, each in enumerate(found):
        alike[each.gpu, each.counts.splits, each.counts.halves].append(index)
    times_us = np.empty(len(found))
    for (gpu, *_), indices in alike.items():
        times_us[indices] = time_us(KernelCounts.together([found[each].counts for each in indices]), gpu, fit)[:, 0]
    return times_us


def descend(fit: Fit, error: Callable[[Fit], float]) -> Fit:
    """`fit` with the constants of `FITTED` changed one after the other as long as the error falls."""
    best, step = error(fit), FIRST_STEP
    while step > LAST_STEP:
        before = best
        for name in FITTED:
            for factor in (1 + step, 1 / (1 + step)):
                tried = replace(fit, **{name: getattr(fit, name) * factor})
                found = error(tried)
                if found < best:
                    fit, best = tried, found
        if best > before * (1 - 1e-3):
            step /= 2
    return replace(fit, **{name: float(f"{getattr(fit, name):.3g}") for name in FITTED})


def leaving(before: Fit, fit: Fit) -> float:
    """Mean squared logarithm of the constants of `FITTED` over those of `before`."""
    return statistics.mean(math.log(getattr(fit, name) / getattr(before, name)) ** 2 for name in FITTED)


def factors(fit: Fit, found: Sequence[Sample]) -> list[float]:
    """How many times too long or too short each estimate is, ascending."""
    ratios = estimates_us(fit, found) / [each.measured_us for each in found]
    return sorted(np.maximum(ratios, 1 / ratios).tolist())


def written(text: str, fits: dict[str, Fit]) -> str:
    """The source `text` of `cost_model_fit` with other constants."""
    head, _, _ = text.partition(MARK)
    lines = []
    for name, fit in fits.items():
        lines += [f'    "{name}": Fit(', *(f"        {key}={value!r}," for key, value in asdict(fit).items()), "    ),"]
    return "\n".join([head + MARK.rstrip(), *lines, "}\n"])


def main() -> None:
    """Fit, show and, when asked to, write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("logs", nargs="+", type=Path, metavar="LOG")
    parser.add_argument("--write", action="store_true", help="keep the constants")
    arguments = parser.parse_args()
    found = samples(record for path in arguments.logs for record in TuningLog(path).records)
    names = sorted({each.gpu.name for each in found})
    if len(names) != 1:
        raise LogError("logs", "not folded CUDA kernels of one card", ", ".join(names) or "none")
    before = FITS[fitted_on(found[0].gpu)]
    after = descend(before, lambda fit: log_error(fit, found) ** 2 + PRIOR * leaving(before, fit))
    print(f"{len(found)} kernels of {round(sum(each.weight for each in found))} convolutions, {names[0]}")
    for label, fit in (("before", before), ("after", after)):
        off = factors(fit, found)
        quantiles = f"{statistics.median(off):.3f} in the median, {off[math.ceil(0.9 * len(off)) - 1]:.3f} for 90%"
        print(f"{label}: off by {quantiles}, log error {log_error(fit, found):.4f}")
    for name in FITTED:
        print(f"  {name}: {getattr(before, name):g} -> {getattr(after, name):g}")
    if arguments.write:
        path = Path(cost_model_fit.__file__)
        path.write_text(written(path.read_text(), {**FITS, names[0]: after}))
        print(f"written to {path}")


if __name__ == "__main__":
    command_line.end_as(main)
