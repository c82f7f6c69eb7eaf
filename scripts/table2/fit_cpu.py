"""How far logs of a CPU are from the time model that predicts its kernels (`tvm_sparse.scheduling.cpu.fit`).

    python scripts/table2/fit_cpu.py tuning_logs/znver5/*.jsonl.xz

For each schedule, and for dense, the median over layers of measured as a multiple of estimated time, and its quartiles;
then the constants that would make each median one. Only ratios count, so a new `SparseFit` is worth it where the
medians of two rows differ by more than their quartiles do.
"""

import argparse
import statistics
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from tvm_sparse.compiler.plan.predict import DENSE, cpu_times_us
from tvm_sparse.conv.conv2d_product import is_linear
from tvm_sparse.logs.record import TuningRecord
from tvm_sparse.logs.tuning_log import TuningLog
from tvm_sparse.schedules import csr_cpu, folded_cpu, vector_cpu
from tvm_sparse.scheduling.cpu.fit import SPARSE
from tvm_sparse.scheduling.family import schedule_of
from tvm_sparse.target.resolve import resolve_target

# The constant that a row's times are in proportion to.
CONSTANTS = {
    DENSE: "dense_ns",
    folded_cpu.NAME: "folded_ns",
    csr_cpu.NAME: "cycle_ns",
    vector_cpu.NAME: "cycle_ns",
}


def ratios(records: Iterable[TuningRecord]) -> dict[str, list[float]]:
    """Measured over estimated times, by schedule: of each layer its fastest kernel."""
    best: dict[tuple[str, str, str], float] = {}
    for record in records:
        is_timed = record.status == "ok" and record.fingerprint["kind"] == "llvm"
        if not is_timed or is_linear(record.spec) or record.spec.groups > 1:
            continue
        target, pattern = resolve_target(record.target), record.pattern
        estimated = cpu_times_us(record.spec, pattern.nnz, target, pattern.vector)
        measured = {schedule_of(record.schedule): min(record.cold_times_us or record.times_us)}
        if dense_times_us := record.dense_cold_times_us or record.dense_times_us:
            measured[DENSE] = min(dense_times_us)
        for name in measured.keys() & CONSTANTS.keys() & estimated.keys():
            key = name, record.spec.key, str(pattern)
            best[key] = min(best.get(key, float("inf")), measured[name] / estimated[name])
    found = defaultdict(list)
    for (name, *_), ratio in best.items():
        found[name].append(ratio)
    return found


def main() -> None:
    """Print a row a schedule."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("logs", nargs="+", type=Path, help="tuning logs of one CPU")
    logs = parser.parse_args().logs
    for name, values in sorted(ratios(record for path in logs for record in TuningLog(path).records).items()):
        low, median, high = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
        constant = CONSTANTS[name]
        suggested = getattr(SPARSE, constant) * median
        print(f"{name}: {median:.2f} ({low:.2f} to {high:.2f}, {len(values)} layers); {constant} {suggested:.3g}")


if __name__ == "__main__":
    main()
