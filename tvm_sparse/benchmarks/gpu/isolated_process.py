"""One process apart: it holds the GPU and is replaced when a kernel breaks its CUDA context, or has its own threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any


def pool(workers: int) -> ProcessPoolExecutor:
    """Fresh processes: CUDA does not survive a fork."""
    return ProcessPoolExecutor(workers, mp_context=get_context("spawn"))


class Runner:
    """Calls functions in a process of its own."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """End the process; the next call starts another."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """``function(*arguments)`` in the process; BrokenProcessPool where the process died of it."""
        if self._pool is None:
            self._pool = pool(1)
        return self._pool.submit(function, *arguments).result()
