"""Check every CUDA schedule on random convolutions against the float64 reference, and time Table 2's larger operators.

Kernels are built side by side in worker processes and run one after the other in another process, which is replaced
when a kernel breaks its CUDA context. Prints a table; -o writes cases, largest errors, failures and times as JSON.
Times are medians of CUDA-graph replays; where torch is installed, cuDNN's best of NCHW and NHWC is timed beside them.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from gpu_jobs import (
    NOT_SERVED,
    OPERATORS,
    Job,
    Result,
    build,
    cudnn_times_us,
    large_jobs,
    operator_jobs,
    pruned_weight,
    random_jobs,
    run,
    target,
)

from tvm_sparse.benchmarks.gpu.isolated_process import Runner, pool
from tvm_sparse.conv.spec import ConvSpec

# The checkout need not be installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))


def run_apart(runner: Runner, job: Job, kernel: str, path: str, timed: bool) -> Result:
    """`run` in the process that holds the GPU; a crash is a failure of the job, and another process takes over."""
    try:
        result: Result = runner.call(run, job, kernel, path, timed)
    except BrokenProcessPool:
        result = Result(job, kernel, failure="the process crashed")
    if result.worst is None:
        runner.end()
    return result


def check(jobs: Sequence[Job], workers: int, timed: bool = False) -> Iterator[Result]:
    """Build all jobs side by side and run each as it is built, or, where `timed`, when all are built."""
    with tempfile.TemporaryDirectory() as folder, pool(workers) as builders, Runner() as runner:
        built: list[tuple[Job, Future[tuple[str, str, str]]]] = [
            (job, builders.submit(build, job, folder)) for job in jobs
        ]
        if timed:
            for _, future in built:
                future.exception()
        for job, future in built:
            try:
                kernel, path, failure = future.result()
            except BrokenProcessPool:
                kernel, path, failure = job.schedule, "", "a building process crashed"
            yield Result(job, kernel, failure=failure) if failure else run_apart(runner, job, kernel, path, timed)


def summary(results: Sequence[Result]) -> dict[str, dict[str, Any]]:
    """By schedule: kernels run, largest error, failures and convolutions that it does not serve."""
    table: dict[str, dict[str, Any]] = {}
    for result in results:
        name = result.job.schedule.partition(":")[0]
        row = table.setdefault(name, {"kernels": 0, "worst": 0.0, "not_served": 0, "failures": []})
        if result.failure == NOT_SERVED:
            row["not_served"] += 1
            continue
        row["kernels"] += 1
        if result.passed:
            row["worst"] = max(row["worst"], result.worst)
        else:
            spec = result.job.case().spec
            row["failures"].append(
                {
                    "kernel": result.kernel,
                    "spec": spec.key,
                    "seed": result.job.seed,
                    "error": result.worst if result.worst is not None else result.failure,
                }
            )
    return table


def print_summary(table: dict[str, dict[str, Any]]) -> None:
    """One line a schedule, then one a failure."""
    print(f"{'schedule':14} {'kernels':>8} {'worst error/bound':>18} {'failures':>9} {'not served':>11}")
    for name, row in table.items():
        counts = f"{len(row['failures']):9} {row['not_served']:11}"
        print(f"{name:14} {row['kernels']:8} {row['worst']:18.3g} {counts}")
    for row in table.values():
        for failure in row["failures"]:
            print(
                f"FAILED {failure['kernel']} {failure['spec']} seed {failure['seed']}: {str(failure['error'])[-300:]}"
            )


def time_operators(schedules: Sequence[str], workers: int) -> list[dict[str, Any]]:
    """Times of Table 2's operators with every schedule, and cuDNN's, one row an operator and batch; prints them."""
    rows: dict[ConvSpec, dict[str, Any]] = {}
    numbers = {size: number for number, (size, _, _) in OPERATORS.items()}
    for result in check(operator_jobs(schedules), workers, timed=True):
        spec = result.job.spec
        assert spec is not None
        row = rows.setdefault(spec, {"operator": numbers[spec.h], "batch": spec.n, "schedules": {}})
        row["schedules"][result.job.schedule] = {
            "kernel": result.kernel,
            "worst": result.worst,
            "failure": result.failure,
            "times_us": result.times_us,
        }
    with Runner() as runner:
        for spec, row in rows.items():
            row["cudnn_us"] = runner.call(cudnn_times_us, spec, pruned_weight(spec, 0))
    for row in rows.values():
        cells = [f"cudnn {name} {value:.1f}" for name, value in row["cudnn_us"].items()]
        for name, cell in row["schedules"].items():
            times = cell["times_us"]
            cells.append(f"{name} {times.get('graph', times['loop']):.1f}" if times else f"{name} FAILED")
        print(f"operator {row['operator']:2} batch {row['batch']:2}, us: {', '.join(cells)}")
        for name, cell in row["schedules"].items():
            if cell["failure"]:
                print(f"    {name}: {cell['failure'][-300:]}")
    return list(rows.values())


def main() -> int:
    """Run the checks that the command line asks for; 4 without a GPU, 5 where a kernel failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=150, help="random convolutions (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the random convolutions (default: %(default)s)")
    parser.add_argument("--schedules", nargs="+", metavar="NAME", help="only these (default: all for CUDA)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="building processes")
    parser.add_argument("--no-times", action="store_true", help="check only")
    parser.add_argument("-o", "--output", type=Path, help="JSON file to write")
    options = parser.parse_args()

    import tvm

    from tvm_sparse.schedules import schedule_names
    from tvm_sparse.target.fingerprint import fingerprint_of

    if not tvm.cuda(0).exist:
        print("no NVIDIA GPU that TVM can use: tvm.cuda(0) does not exist", file=sys.stderr)
        return 4
    cuda = target()
    schedules = options.schedules or [name for name in schedule_names(cuda) if not name.startswith("generated")]
    started = time.monotonic()
    jobs = [*random_jobs(options.cases, options.seed, schedules), *large_jobs(schedules)]
    table = summary(list(check(jobs, options.workers)))
    print_summary(table)
    report: dict[str, Any] = {
        "cases": options.cases,
        "seed": options.seed,
        "fingerprint": fingerprint_of(cuda),
        "schedules": table,
        "check_s": round(time.monotonic() - started, 1),
    }
    _write(options.output, report)
    if not options.no_times:
        report["operators"] = time_operators(schedules, options.workers)
        _write(options.output, report)
    print(f"{time.monotonic() - started:.0f} s")
    return 5 if any(row["failures"] for row in table.values()) else 0


def _write(path: Path | None, report: dict[str, Any]) -> None:
    if path is not None:
        path.write_text(json.dumps(report) + "\n")


if __name__ == "__main__":
    sys.exit(main())
