"""Threads that begin the most urgent of the jobs that wait: the longest first, and none is left for the end."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")
# Urgency, negative; number; what to do, None for nothing any more; what comes of it.
_Job = tuple[float, int, Callable[[], Any] | None, Future[Any]]


class JobThreads:
    """`count` threads that run what is submitted to them; a context manager that waits for what has begun."""

    def __init__(self, count: int):
        # Equally urgent jobs go in the order in which they came.
        self._numbers = itertools.count()
        self._jobs: queue.PriorityQueue[_Job] = queue.PriorityQueue()
        self._is_cancelled = False
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def submit(self, urgency: float, function: Callable[[], T]) -> Future[T]:
        """What `function` will return; CancelledError after `cancel`."""
        future: Future[T] = Future()
        self._jobs.put((-urgency, next(self._numbers), function, future))
        return future

    def cancel(self) -> None:
        """Begin nothing any more."""
        self._is_cancelled = True

    def __enter__(self) -> JobThreads:
        return self

    def __exit__(self, *_error: object) -> None:
        for _ in self._threads:
            self._jobs.put((float("inf"), next(self._numbers), None, Future()))
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while True:
            *_, function, future = self._jobs.get()
            if function is None:
                return
            if self._is_cancelled:
                future.cancel()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function())
                except BaseException as error:
                    future.set_exception(error)
            # What they hold may be large, and the next job long in coming.
            del function, future
