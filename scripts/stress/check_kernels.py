"""Check every schedule of a target on random convolutions against the float64 reference.

Each case is one convolution and weight; every schedule makes one kernel of it, in turn with its default decisions and
with random ones. Integer-valued cases must be exact; all others lie within the error bound of `conv.reference`, and the
worst error is reported as a fraction of it. On a GPU larger convolutions are checked too, with every variant. A kernel
that crashes its process is a failure like any other. Case i of a seed is always the same: repeat one with --first i
--cases 1. With --done FILE, finished cases are kept there, and the same command, also with more --cases, continues.

    python scripts/stress/check_kernels.py --target llvm --cases 10000 --seed 1 --done done.jsonl -o check.json
    python scripts/stress/check_kernels.py --target cuda --cases 500 -o docs/results/h200-check.json
"""

import argparse
import json
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import kernel_jobs
import tvm
from kernel_jobs import LARGE, Job, Result

from tvm_sparse.schedules.lookup import family_of, schedule_names
from tvm_sparse.target.cpu import available_cores
from tvm_sparse.target.fingerprint import fingerprint_of
from tvm_sparse.target.resolve import resolve_target

CPU = '{"kind":"llvm","num-cores":2}'
# Cases that are checked, and done, together.
CPU_CASES, GPU_CASES = 50, 250


def check(options: argparse.Namespace, schedules: list[str]) -> tuple[list[Result], float]:
    """The results of all cases, those already done included, and the seconds that they took."""
    on_gpu = options.target == "cuda"
    target, together = (options.target, GPU_CASES) if on_gpu else (CPU, CPU_CASES)
    run = {"seed": options.seed, "schedules": schedules, "target": options.target}
    done, found = Done(options.done, run, options.workers, target), []
    for first in range(options.first, options.first + options.cases, together):
        numbers = range(first, min(first + together, options.first + options.cases))
        jobs = kernel_jobs.random_jobs(numbers, options.seed, schedules, on_gpu)
        found.append(done.check(first, len(numbers), jobs))
    if on_gpu:
        found.append(done.check("large", len(LARGE), kernel_jobs.cuda_jobs(LARGE, schedules)))
    return [result for each in found for result in each["results"]], sum(each["check_s"] for each in found)


class Done:
    """What has been checked of a run, cases together by the first and their number; in a file, one line of JSON each.

    The first line says what was checked: a run that checks something else does not continue it.
    """

    def __init__(self, path: Path | None, run: dict[str, Any], workers: int, target: str):
        self.path, self.workers, self.target = path, workers, target
        lines = path.read_bytes().splitlines(keepends=True) if path is not None and path.exists() else []
        # A line that a killed run did not finish is dropped.
        head, *known = [json.loads(line) for line in lines if line.endswith(b"\n")] or [run]
        if head != run:
            raise SystemExit(f"{path}: belongs to another run, {head}; this is {run}; choose another --done")
        self.known = {(line["first"], line["cases"]): line for line in known}
        self._write("w", head, *known)

    def check(self, first: int | str, cases: int, jobs: Sequence[Job]) -> dict[str, Any]:
        """The line of some cases, whose jobs are checked where they are not done yet."""
        if (first, cases) in self.known:
            return self.known[first, cases]
        started = time.monotonic()
        results = list(kernel_jobs.check(jobs, self.workers, self.target))
        line = {"first": first, "cases": cases, "check_s": time.monotonic() - started, "results": results}
        self._write("a", line)
        return line

    def _write(self, mode: str, *lines: dict[str, Any]) -> None:
        if self.path is not None:
            with self.path.open(mode) as file:
                file.writelines(json.dumps(line) + "\n" for line in lines)


def summary(results: Iterable[Result]) -> dict[str, dict[str, Any]]:
    """By schedule: kernels run, their largest error, results of those that failed, and number of cases not served."""
    table: dict[str, dict[str, Any]] = {}
    for result in results:
        empty = {"kernels": 0, "worst": 0.0, "not_served": 0, "failures": []}
        row = table.setdefault(result["schedule"], empty)
        row["not_served" if "not_served" in result else "kernels"] += 1
        if "cause" in result:
            row["failures"].append(result)
        else:
            row["worst"] = max(row["worst"], result.get("worst", 0))
    return table


def main() -> int:
    """Run the checks that the command line asks for; 4 without a GPU, 5 where a kernel failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", choices=("llvm", "cuda"), default="llvm", help="(default: %(default)s)")
    parser.add_argument("--cases", type=int, default=500, help="random convolutions (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the random convolutions (default: %(default)s)")
    parser.add_argument("--first", type=int, default=0, help="number of the first case (default: %(default)s)")
    parser.add_argument("--schedules", nargs="+", metavar="NAME", help="only these (default: all with decisions)")
    parser.add_argument("--workers", type=int, default=available_cores(), help="processes at a time (default: cores)")
    parser.add_argument("--done", type=Path, metavar="FILE", help="finished cases, to continue from")
    parser.add_argument("-o", "--output", type=Path, help="JSON file to write")
    options = parser.parse_args()

    if options.target == "cuda" and not tvm.cuda(0).exist:
        print("no NVIDIA GPU that TVM can use: tvm.cuda(0) does not exist", file=sys.stderr)
        return 4
    target = resolve_target(CPU if options.target == "llvm" else options.target)
    # Generated spaces have no decisions but those that a search finds.
    schedules = options.schedules or [each for each in schedule_names(target, True) if not family_of(each).is_generated]
    results, check_s = check(options, schedules)
    table = summary(results)
    report = {"cases": options.cases, "seed": options.seed, "fingerprint": fingerprint_of(target)}
    report |= {"schedules": table, "check_s": round(check_s, 1)}
    if options.output is not None:
        options.output.write_text(json.dumps(report, indent=1) + "\n")
    for name, row in table.items():
        counts = f"{len(row['failures'])} failed, {row['not_served']} not served"
        print(f"{name:<14} {row['kernels']:6} kernels, worst error {row['worst']:.3f} of its bound, {counts}")
        for each in row["failures"]:
            print(f"  case {each['index']}: {each['cause']} ({each.get('space', '')}, {each.get('case', '')})")
    print(f"{check_s:.0f} s")
    return 5 if any(row["failures"] for row in table.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
