"""A process for each case: what a rival of ours breaks is gone with it, and the row is measured without that rival."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.models.row import Case, Row
from tvm_sparse.errors import BuildError, TvmSparseError

# What a process tells, each with a value: it begins with a rival, or has ended with it (""); ours is built; its rows;
# why there are none.
DOING, BUILT, ROWS, FAILED = "doing", "built", "rows", "failed"
_LOST = "lost"
# For one way of torch, and for all that is not torch's, of which a first import takes a minute on a busy machine.
WAY_S, OURS_S = 400.0, 600.0
# Of a case for itself, once all is built: torch's caches are read, graphs recorded, all timed. Half of the time is for
# building anyway: a row without its strongest rival says little.
TIMING_S, BUILDING_SHARE = 20.0, 0.5
Serve = Callable[[Connection, Case, Mapping[str, str]], None]


def serve(pipe: Connection, case: Case, failures: Mapping[str, str]) -> None:
    """Build a case, say so, and once asked for its rows measure them; rivals in `failures` are not tried."""
    from benchmarks.models.measure import Bench

    try:
        bench = Bench(case, failures, lambda name: pipe.send((DOING, name)))
        if case.side_by_side:
            bench.fill_caches()
        pipe.send((BUILT, None))
        pipe.recv()
        pipe.send((ROWS, bench.rows()))
    except TvmSparseError as error:
        pipe.send((FAILED, str(error)))


class RowProcess:
    """The process of a case, which has begun to build it; a context manager that ends it."""

    def __init__(self, case: Case, serve: Serve = serve):
        self._case, self._serve = case, serve
        self._failures: dict[str, str] = {}
        self._start()

    def __enter__(self) -> RowProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()
        self._pipe.close()

    def build(self) -> None:
        """Wait until ours is built; BuildError where it is not, as of `rows`."""
        self._wait(BUILT)

    def rows(self) -> list[Row]:
        """The rows of a case that is built, measured while this waits.

        Raises
        ------
        BuildError
            Ours cannot be built, is wrong, or takes longer than `OURS_S`.
        """
        self._pipe.send(None)
        found: list[Row] = self._wait(ROWS)
        return found

    def _start(self) -> None:
        # A fresh process: CUDA does not survive a fork.
        context = get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=self._serve, args=(other, self._case, dict(self._failures)))
        self._process.start()
        other.close()
        self._doing, self._since_s = "", time.monotonic()

    def _wait(self, wanted: str) -> Any:
        while True:
            kind, value = self._told()
            self._since_s = time.monotonic()
            if kind == wanted:
                return value
            if kind == DOING:
                self._doing = value
            elif kind == BUILT:
                # It had been asked for its rows, and was started again.
                self._pipe.send(None)
            elif kind == _LOST and self._doing:
                self._failures[self._doing] = value
                self.__exit__()
                self._start()
            else:
                raise BuildError(self._case.name, "cannot be measured", value)

    def _told(self) -> tuple[str, Any]:
        limit_s = WAY_S if self._doing else OURS_S
        try:
            if self._pipe.poll(max(0.0, self._since_s + limit_s - time.monotonic())):
                found: tuple[str, Any] = self._pipe.recv()
                return found
            return _LOST, f"took more than {limit_s:.0f} s"
        except (EOFError, ConnectionError):
            self._process.join()
            return _LOST, f"its process ended with code {self._process.exitcode}"


def measured(
    cases: Sequence[Case],
    at_once: int,
    budget_s: float,
    keep: Callable[[list[Row]], None],
    serve: Serve = serve,
) -> list[str]:
    """Build `at_once` cases side by side, then measure one after the other, and so on; why cases have no row.

    `keep` gets the rows of each case as soon as they are measured. After `budget_s` no case is begun, and nothing of
    torch's is compiled.
    """
    end_s, lost = time.monotonic() + budget_s, []
    groups = [cases[i : i + at_once] for i in range(0, len(cases), at_once)]
    for number, group in enumerate(groups):
        now_s = time.monotonic()
        if now_s > end_s:
            lost += [f"{each.name}: not begun, the budget was spent" for each in group]
            continue
        share_s = (end_s - now_s) / (len(groups) - number)
        until_s = now_s + max(share_s - TIMING_S * len(group), BUILDING_SHARE * share_s)
        with ExitStack() as stack:
            made = [replace(each, side_by_side=len(group) > 1, until_s=until_s) for each in group]
            running = [stack.enter_context(RowProcess(each, serve)) for each in made]
            built = [each for each in running if not _failed(each.build, lost)]
            for each in built:
                _failed(partial(_keep, keep, each), lost)
    return lost


def _keep(keep: Callable[[list[Row]], None], process: RowProcess) -> None:
    with process:
        keep(process.rows())


def _failed(step: Callable[[], object], lost: list[str]) -> bool:
    """Whether `step` raises, which `lost` then says."""
    try:
        step()
    except BuildError as error:
        lost.append(str(error))
        return True
    return False
