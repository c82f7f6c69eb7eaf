"""Which kernel families win in tuning logs, and what would be lost without each of them.

    python scripts/models/count_wins.py tuning_logs/nvidia-h200/*.xz

Of each weight on each machine the fastest record counts. What is lost without its family is how many times as long the
fastest of all others takes, dense ones that were timed beside it among them.
"""

import argparse
import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from tvm_sparse.logs.ranking import comparable_times_us
from tvm_sparse.logs.record import TuningRecord
from tvm_sparse.logs.tuning_log import TuningLog


def losses(log: TuningLog) -> dict[str, list[float]]:
    """For each family that wins anywhere, how many times as long the next takes, a number for each win."""
    of_weight = defaultdict(list)
    for record in log.records:
        if record.status == "ok":
            machine = record.fingerprint["arch"], record.fingerprint["threads"]
            of_weight[record.spec, record.pattern.value_digest, machine].append(record)
    found = defaultdict(list)
    for records in of_weight.values():
        family, times = _winner([each for each in records if each.is_cold] or records)
        found[family].append(times)
    return found


def _winner(records: Sequence[TuningRecord]) -> tuple[str, float]:
    """The family of the fastest, and how many times as long the fastest of others takes; 1 where there are none."""
    timed = sorted(zip(comparable_times_us(records), records, strict=True), key=lambda pair: pair[0])
    best_us, best = timed[0]
    others = [time_us for time_us, each in timed if each.family is not best.family]
    if best.dense_time_us is not None and not best.is_dense:
        others.append(best_us * best.dense_time_us / best.time_us)
    return best.family.name, max(1.0, min(others) / best_us) if others else 1.0


def main() -> None:
    """Print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("logs", nargs="+", type=Path)
    first, *more = parser.parse_args().logs
    print("| family | weights it wins | without it, median | at most | over 1.05 |\n|---|---:|---:|---:|---:|")
    for family, times in sorted(losses(TuningLog(first, *more)).items(), key=lambda item: -len(item[1])):
        over = sum(each > 1.05 for each in times)
        print(f"| `{family}` | {len(times)} | {statistics.median(times):.2f}x | {max(times):.1f}x | {over} |")


if __name__ == "__main__":
    main()
