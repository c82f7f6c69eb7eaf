"""Check every CPU schedule on random convolutions against the float64 reference.

Each case is one convolution and weight; every schedule makes one kernel of it, in turn with its default decisions and
with random ones. Integer-valued cases must be exact; all others lie within the bound of `tvm_sparse.reference`, and the
worst error is reported as a fraction of it. Cases run in child processes, so a kernel that crashes is a failure like
any other. Case i of a seed is always the same: repeat one with --first i --cases 1. With --done FILE, finished cases
are kept there, and the same command, also with more --cases, continues.

    python scripts/stress/check_cpu.py --cases 10000 --seed 1 --done done.jsonl -o docs/results/check-cpu.json
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from random_convolutions import random_case, random_kernel

from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.errors import TvmSparseError
from tvm_sparse.schedules import schedule_names, spaces_of
from tvm_sparse.scheduling.kernel import apply_decisions
from tvm_sparse.target.cpu import available_cores
from tvm_sparse.target.fingerprint import fingerprint_of
from tvm_sparse.target.resolve import resolve_target

# The checkout need not be installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))


# Cases of one child process.
CHUNK = 50
# A case takes about a second; a child that takes this long hangs.
TIMEOUT_S = 60 * CHUNK
TARGET = '{"kind":"llvm","num-cores":2}'


def check_case(seed: int, index: int, schedules: Sequence[str]) -> Iterator[dict[str, Any]]:
    """One result for each schedule that serves case `index`: its worst error, or why there is none."""
    target = resolve_target(TARGET)
    case = random_case(random.Random(f"case {seed} {index}").choice)
    for schedule in schedules:
        choose = random.Random(f"kernel {seed} {index} {schedule}").choice
        spaces, reasons = spaces_of(case.spec, SparsityPattern.of(case.weight), target, [schedule])
        each = choose(spaces) if spaces else None
        decided = "random" if index % 2 else "default"
        result = {"schedule": schedule, "index": index, "case": repr(case), "decisions": decided, "worst": None}
        if each is None:
            yield {**result, "not_served": reasons[schedule]}
            continue
        result["space"] = each.name
        try:
            is_random = decided == "random"
            kernel = random_kernel(each, case.weight, choose) if is_random else apply_decisions(each, case.weight)
            worst = case.worst(kernel, target)
        except (TvmSparseError, RuntimeError, ValueError, TypeError) as error:
            yield {**result, "cause": f"{type(error).__name__}: {str(error).strip()[-500:]}"}
            continue
        yield {**result, "worst": worst} if worst <= 1 else {**result, "cause": f"{worst:.3g} times the error bound"}


def check_in_child(seed: int, first: int, count: int, schedules: Sequence[str]) -> list[dict[str, Any]]:
    """The results of `count` cases from `first` on; a child that dies is split until its case is found."""
    cases = ["--seed", str(seed), "--first", str(first), "--cases", str(count), "--child"]
    command = [sys.executable, __file__, *cases, "--schedules", *schedules]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        if done.returncode == 0:
            return [json.loads(line) for line in done.stdout.splitlines()]
        cause = f"the process ended with code {done.returncode}: {done.stderr.strip()[-500:]}"
    except subprocess.TimeoutExpired:
        cause = f"took longer than {TIMEOUT_S} s"
    if count > 1:
        half = count // 2
        left = check_in_child(seed, first, half, schedules)
        return left + check_in_child(seed, first + half, count - half, schedules)
    if len(schedules) > 1:
        return [result for name in schedules for result in check_in_child(seed, first, 1, [name])]
    return [{"schedule": schedules[0], "index": first, "worst": None, "cause": cause}]


Table = dict[str, dict[str, Any]]


def summary(results: Sequence[dict[str, Any]]) -> Table:
    """Per schedule: kernels checked, the worst error as a fraction of its bound, cases not served, failures."""
    table: Table = {}
    for result in results:
        row = table.setdefault(result["schedule"], _new_row())
        if "not_served" in result:
            row["not_served"] += 1
            continue
        row["kernels"] += 1
        if "cause" in result:
            row["failures"].append(result)
        else:
            row["worst"] = max(row["worst"], result["worst"])
    return table


def _new_row() -> dict[str, Any]:
    return {"kernels": 0, "worst": 0.0, "not_served": 0, "failures": []}


def joined(tables: Iterable[Table]) -> Table:
    """The summary of all cases, from summaries of some each."""
    total: Table = {}
    for table in tables:
        for name, row in table.items():
            sums = total.setdefault(name, _new_row())
            sums["worst"] = max(sums["worst"], row["worst"])
            for key in ("kernels", "not_served", "failures"):
                sums[key] += row[key]
    return total


class Done:
    """Summaries of finished chunks of a run, by first case and number of cases; in a file, one line of JSON each.

    The first line says what was checked: a run that checks something else does not continue it.
    """

    def __init__(self, path: Path | None, run: dict[str, Any]):
        self.path = path
        lines = path.read_bytes().splitlines(keepends=True) if path is not None and path.exists() else []
        # A line that a killed run did not finish is dropped.
        head, *chunks = [json.loads(line) for line in lines if line.endswith(b"\n")] or [run]
        if head != run:
            raise SystemExit(f"{path}: belongs to another run, {head}; this is {run}; choose another --done")
        self.chunks: dict[tuple[int, int], dict[str, Any]] = {(each["first"], each["cases"]): each for each in chunks}
        if path is not None:
            path.write_text("".join(json.dumps(line) + "\n" for line in (head, *chunks)))

    def add(self, chunk: dict[str, Any]) -> None:
        """Keep the result of a chunk: `first`, `cases`, `table` and `check_s`."""
        self.chunks[chunk["first"], chunk["cases"]] = chunk
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(json.dumps(chunk) + "\n")


def check(numbers: range, seed: int, schedules: Sequence[str], workers: int, done: Done) -> tuple[Table, float]:
    """The summary of all cases `numbers`, those already `done` included, and the seconds that child processes took."""
    chunks = [numbers[i : i + CHUNK] for i in range(0, len(numbers), CHUNK)]
    keys = [(chunk[0], len(chunk)) for chunk in chunks]
    lock = threading.Lock()

    def run(key: tuple[int, int]) -> None:
        first, cases = key
        started = time.monotonic()
        table = summary(check_in_child(seed, first, cases, schedules))
        with lock:
            done.add({"first": first, "cases": cases, "table": table, "check_s": time.monotonic() - started})

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(run, [key for key in keys if key not in done.chunks]))
    results = [done.chunks[key] for key in keys]
    return joined(each["table"] for each in results), sum(each["check_s"] for each in results)


def main() -> int:
    """Run the checks that the command line asks for; 5 where a kernel failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=500, help="random convolutions (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the random convolutions (default: %(default)s)")
    parser.add_argument("--first", type=int, default=0, help="number of the first case (default: %(default)s)")
    parser.add_argument("--schedules", nargs="+", metavar="NAME", help="only these (default: all with decisions)")
    parser.add_argument("--workers", type=int, default=available_cores(), help="child processes at a time")
    parser.add_argument("--done", type=Path, metavar="FILE", help="finished cases, to continue from")
    parser.add_argument("-o", "--output", type=Path, help="JSON file to write")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    target = resolve_target(TARGET)
    # Generated spaces have no decisions but those that a search finds.
    schedules = options.schedules or [name for name in schedule_names(target) if not name.startswith("generated")]
    numbers = range(options.first, options.first + options.cases)
    if options.child:
        for index in numbers:
            for result in check_case(options.seed, index, schedules):
                print(json.dumps(result), flush=True)
        return 0
    done = Done(options.done, {"seed": options.seed, "schedules": schedules, "target": TARGET})
    table, check_s = check(numbers, options.seed, schedules, options.workers, done)
    report = {
        "cases": options.cases,
        "seed": options.seed,
        "fingerprint": fingerprint_of(target),
        "schedules": table,
        "check_s": round(check_s, 1),
    }
    if options.output is not None:
        options.output.write_text(json.dumps(report, indent=1) + "\n")
    for name, row in table.items():
        failures = f"{len(row['failures'])} failed"
        print(f"{name:<14} {row['kernels']:6} kernels, worst error {row['worst']:.3f} of its bound, {failures}")
        for failure in row["failures"]:
            print(
                f"  case {failure['index']}: {failure['cause']} ({failure.get('space', '')}, {failure.get('case', '')})"
            )
    print(f"{report['check_s']:.0f} s")
    return 5 if any(row["failures"] for row in table.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
