"""Processes apart: one holds the GPU and is replaced when a kernel breaks its CUDA context, others build kernels."""

import queue
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from tvm_sparse.measure.worker import Worker


class Runner:
    """Calls functions in a process of its own, until it is closed."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None

    def close(self) -> None:
        """End the process; the next call starts another."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """``function(*arguments)`` in the process; BrokenProcessPool where the process died of it."""
        if self._pool is None:
            # A fresh process: CUDA does not survive a fork.
            self._pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
        return self._pool.submit(function, *arguments).result()


_SERVE = "import sys; sys.path.insert(0, sys.argv.pop(1)); from tvm_sparse.measure.worker_main import main; main()"


def serving(script: str) -> tuple[str, ...]:
    """The command of workers that serve the ``actions()`` of a script; they import TVM without torch."""
    path = Path(script)
    return (sys.executable, "-c", _SERVE, str(path.parent), path.stem)


@contextmanager
def crew(size: int, command: Sequence[str] | None = None) -> Iterator[Callable[..., dict[str, Any]]]:
    """`Worker.ask` of whichever of `size` workers is idle, to be called from as many threads."""
    workers = [Worker({}, command=command) for _ in range(size)]
    idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
    for each in workers:
        idle.put(each)

    def ask(request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        worker = idle.get()
        try:
            return worker.ask(request, timeout_s)
        finally:
            idle.put(worker)

    try:
        yield ask
    finally:
        for each in workers:
            each.stop()
