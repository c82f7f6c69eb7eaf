"""Threads that do the most urgent job first."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError

import pytest

from tvm_sparse.compiler.building.job_threads import JobThreads


def test_the_most_urgent_goes_first() -> None:
    """Of those that wait; equally urgent ones in their order."""
    begun, go, order = threading.Event(), threading.Event(), []

    def block() -> None:
        begun.set()
        go.wait(60)

    with JobThreads(1) as threads:
        blocker = threads.submit(0, block)
        assert begun.wait(60)
        jobs = [threads.submit(urgency, lambda name=name: order.append(name)) for name, urgency in
                (("short", 1), ("long", 9), ("first", 5), ("second", 5))]  # fmt: skip
        go.set()
        assert [job.result(60) for job in [blocker, *jobs]] == [None] * 5
    assert order == ["long", "first", "second", "short"]


def test_as_many_at_a_time_as_there_are_threads() -> None:
    """They meet each other, and a result or an error comes back."""
    together = threading.Barrier(3)
    with JobThreads(3) as threads:
        jobs = [threads.submit(1, lambda: together.wait(60) >= 0) for _ in range(3)]
        assert all(job.result(60) for job in jobs)
        with pytest.raises(ZeroDivisionError):
            threads.submit(1, lambda: 1 / 0).result(60)


def test_nothing_begins_after_a_cancel() -> None:
    """Neither what waits nor what comes later."""
    begun, go = threading.Event(), threading.Event()

    def block() -> str:
        begun.set()
        go.wait(60)
        return "ended"

    with JobThreads(1) as threads:
        running = threads.submit(1, block)
        assert begun.wait(60)
        waiting = threads.submit(1, pytest.fail)
        threads.cancel()
        go.set()
        late = threads.submit(1, pytest.fail)
        assert running.result(60) == "ended"
        for job in (waiting, late):
            with pytest.raises(CancelledError):
                job.result(60)
