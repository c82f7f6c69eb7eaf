"""Check every schedule of a target on random convolutions against the float64 reference.

Each case is one convolution and weight; every schedule makes one kernel of it, in turn with its default decisions and
with random ones. Integer-valued cases must be exact; all others lie within the error bound of `conv.reference`, and the
worst error is reported as a fraction of it. On a GPU larger convolutions are checked too, with every variant. A kernel
that crashes its process is a failure like any other. Case i of a seed is always the same: repeat one with --first i
--cases 1. With --done FILE, finished cases are kept there, and the same command, also with more --cases, continues.

    python scripts/stress/check_kernels.py --target llvm --cases 10000 --seed 1 --done done.jsonl -o check.json
    python scripts/stress/check_kernels.py --target cuda --cases 500 -o docs/results/h200-check.json
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import cpu_jobs
import gpu_jobs
from kernel_jobs import Done, Result, Table

from tvm_sparse.schedules import schedule_names
from tvm_sparse.target.cpu import available_cores
from tvm_sparse.target.fingerprint import fingerprint_of
from tvm_sparse.target.resolve import resolve_target

# Cases that are checked, and done, together.
CPU_CHUNK, GPU_CHUNK = 50, 250
LARGE = "large"


def check(options: argparse.Namespace, target: Any, schedules: list[str]) -> tuple[Table, float]:
    """The summary of all cases, those already done included, and the seconds that they took."""
    run = {"seed": options.seed, "schedules": schedules, "target": options.target}
    done, on_gpu = Done(options.done, run), target.kind.name == "cuda"
    chunk, end = GPU_CHUNK if on_gpu else CPU_CHUNK, options.first + options.cases
    keys: list[tuple[Any, int]] = [(first, min(chunk, end - first)) for first in range(options.first, end, chunk)]
    if on_gpu:
        keys.append((LARGE, len(gpu_jobs.LARGE)))
        table = done.check(keys, partial(check_on_gpu, options.seed, schedules, options.workers), 1)
    else:
        table = done.check(keys, partial(cpu_jobs.check_in_child, options.seed, schedules), options.workers)
    return table, sum(done.chunks[key]["check_s"] for key in keys)


def check_on_gpu(seed: int, schedules: list[str], workers: int, first: Any, count: int) -> Iterator[Result]:
    """The results of `count` cases from `first` on, or of the large convolutions."""
    if first == LARGE:
        return gpu_jobs.check(gpu_jobs.large_jobs(schedules), workers)
    return gpu_jobs.check(gpu_jobs.random_jobs(range(first, first + count), seed, schedules), workers)


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

    import tvm

    if options.target == "cuda" and not tvm.cuda(0).exist:
        print("no NVIDIA GPU that TVM can use: tvm.cuda(0) does not exist", file=sys.stderr)
        return 4
    target = resolve_target(cpu_jobs.TARGET if options.target == "llvm" else options.target)
    # Generated spaces have no decisions but those that a search finds.
    schedules = options.schedules or [name for name in schedule_names(target) if not name.startswith("generated")]
    table, check_s = check(options, target, schedules)
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
