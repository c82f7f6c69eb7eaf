"""Kernels to check: what each is made of, how it went, and what is kept of a run so that it can go on."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from random_convolutions import Case, random_case, random_kernel, random_weight

from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.errors import TvmSparseError
from tvm_sparse.schedules import spaces_of
from tvm_sparse.scheduling.kernel import Kernel, apply_decisions

# Of weights that are not random in all that can be.
DENSITY = 0.1
# What a kernel that is wrong or cannot be built may raise.
ERRORS = (TvmSparseError, RuntimeError, ValueError, TypeError)
# How one kernel went: `schedule`, `index`, `case`, `space` and `worst`, its largest error as a fraction of the bound;
# where there is none, `cause` or, of a schedule that does not apply, `not_served`.
Result = dict[str, Any]
# By schedule: kernels run, their largest error, results of those that failed, and cases not served.
Table = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Job:
    """One kernel of a schedule, ``name`` or ``name:variant``.

    It computes case `index` of `seed`, which is always the same, of so many `images` where they are given, with default
    decisions where the index is even and random ones where it is odd; or `spec`, with default decisions.
    """

    schedule: str
    seed: int = 0
    index: int = 0
    images: int | None = None
    spec: ConvSpec | None = None

    def case(self) -> Case:
        """The convolution, its weight and its inputs' seed."""
        if self.spec is not None:
            return Case(self.spec, pruned_weight(self.spec, self.seed), self.seed, integers=False)
        case = random_case(random.Random(f"case {self.seed} {self.index}").choice)
        return replace(case, spec=replace(case.spec, n=self.images or case.spec.n))

    def make(self, target: Any) -> tuple[Result, Kernel | None]:
        """The kernel, and its result as far as it is known; None where it has a cause already."""
        case, (name, _, variant) = self.case(), self.schedule.partition(":")
        known = {"schedule": name, "index": self.index, "case": repr(case), "worst": None}
        found, reasons = spaces_of(case.spec, SparsityPattern.of(case.weight), target, [name])
        found = [each for each in found if not variant or each.name == self.schedule]
        if not found:
            return {**known, "not_served": reasons.get(name, "it has no such variant")}, None
        choose = random.Random(f"kernel {self.seed} {self.index} {name}").choice
        space = choose(found) if self.spec is None else found[0]
        known["space"] = space.name
        try:
            is_random = self.spec is None and self.index % 2 == 1
            return known, random_kernel(space, case.weight, choose) if is_random else apply_decisions(
                space, case.weight
            )
        except ERRORS as error:
            return {**known, "cause": cause_of(error)}, None


def pruned_weight(spec: ConvSpec, seed: int) -> np.ndarray:
    """A normal weight whose smallest values are zero, of density `DENSITY`."""
    weight = random_weight(spec, 1.0, "unstructured", seed, integers=False)
    weight[np.abs(weight) < np.quantile(np.abs(weight), 1 - DENSITY)] = 0
    return weight


def cause_of(error: Exception) -> str:
    """An exception as a cause of failure."""
    return f"{type(error).__name__}: {str(error).strip()[-500:]}"


def judged(known: Result, worst: float) -> Result:
    """The result of a kernel that ran."""
    return {**known, "worst": worst} if worst <= 1 else {**known, "cause": f"{worst:.3g} times the error bound"}


def summary(results: Iterable[Result]) -> Table:
    """Results counted by schedule."""
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
        self.path, self._lock = path, threading.Lock()
        lines = path.read_bytes().splitlines(keepends=True) if path is not None and path.exists() else []
        # A line that a killed run did not finish is dropped.
        head, *chunks = [json.loads(line) for line in lines if line.endswith(b"\n")] or [run]
        if head != run:
            raise SystemExit(f"{path}: belongs to another run, {head}; this is {run}; choose another --done")
        self.chunks: dict[tuple[Any, int], dict[str, Any]] = {(each["first"], each["cases"]): each for each in chunks}
        if path is not None:
            path.write_text("".join(json.dumps(line) + "\n" for line in (head, *chunks)))

    def check(self, keys: Sequence[tuple[Any, int]], check: Callable[..., Iterable[Result]], workers: int) -> Table:
        """The summary of the chunks `keys`; those that are not done yet are checked, `workers` at a time."""

        def run(key: tuple[Any, int]) -> None:
            started = time.monotonic()
            table = summary(check(*key))
            chunk = {"first": key[0], "cases": key[1], "table": table, "check_s": time.monotonic() - started}
            with self._lock:
                self.chunks[key] = chunk
                if self.path is not None:
                    with self.path.open("a") as file:
                        file.write(json.dumps(chunk) + "\n")

        with ThreadPoolExecutor(workers) as threads:
            list(threads.map(run, [key for key in keys if key not in self.chunks]))
        return joined(self.chunks[key]["table"] for key in keys)
