"""Jobs of `check_kernels.py` on the CPU, in child processes, so that a kernel that crashes is a failure like any other.

``python cpu_jobs.py SEED FIRST COUNT SCHEDULE...`` is such a child; it prints one line of JSON a kernel.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence

from kernel_jobs import ERRORS, Job, Result, cause_of, judged

from tvm_sparse.target.resolve import resolve_target

TARGET = '{"kind":"llvm","num-cores":2}'
# A case takes about a second; a child that takes this long for each hangs.
TIMEOUT_S = 60


def check_case(seed: int, index: int, schedules: Sequence[str]) -> Iterator[Result]:
    """Build and run a kernel of each schedule for case `index`."""
    target = resolve_target(TARGET)
    for schedule in schedules:
        job = Job(schedule, seed, index)
        known, kernel = job.make(target)
        if kernel is not None:
            try:
                known = judged(known, job.case().worst(kernel, target))
            except ERRORS as error:
                known["cause"] = cause_of(error)
        yield known


def check_in_child(seed: int, schedules: Sequence[str], first: int, count: int) -> list[Result]:
    """The results of `count` cases from `first` on; a child that dies is split until its case is found."""
    command = [sys.executable, __file__, *map(str, (seed, first, count)), *schedules]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S * count, check=False)
        if done.returncode == 0:
            return [json.loads(line) for line in done.stdout.splitlines()]
        cause = f"the process ended with code {done.returncode}: {done.stderr.strip()[-500:]}"
    except subprocess.TimeoutExpired:
        cause = f"took longer than {TIMEOUT_S * count} s"
    if count > 1:
        half = count // 2
        left = check_in_child(seed, schedules, first, half)
        return left + check_in_child(seed, schedules, first + half, count - half)
    if len(schedules) > 1:
        return [result for name in schedules for result in check_in_child(seed, [name], first, 1)]
    return [{"schedule": schedules[0], "index": first, "worst": None, "cause": cause}]


if __name__ == "__main__":
    numbers = range(int(sys.argv[2]), int(sys.argv[2]) + int(sys.argv[3]))
    for number in numbers:
        for each in check_case(int(sys.argv[1]), number, sys.argv[4:]):
            print(json.dumps(each), flush=True)
