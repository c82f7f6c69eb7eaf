"""Crew: a thread that runs calls for others, with a pool of TVM's for itself."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any


class Call:
    """A call of `function` with `wanted` threads at most, and what becomes of it.

    * `process`: how many forks lie between the process that it began in and the first.
    * `cores`: those that it has now.
    * `crew`: the one that runs it; None where its own thread does.
    * `is_handed_over`, `is_done`: whether the crew has it, and has done it.
    """

    # What all begin with stands here: a call of a small model takes few microseconds in all.
    cores = 0
    crew: Crew | None = None
    is_handed_over = is_done = False
    result: Any = None
    error: BaseException | None = None
    # Of one that does not wait.
    _turn = threading.Lock()

    def __init__(self, function: Callable[[], Any], wanted: int, process: int):
        self.function, self.wanted, self.process = function, wanted, process

    def will_wait(self) -> None:
        """Before another thread is told of a call that waits for it."""
        self._turn = threading.Lock()
        self._turn.acquire()

    def wait(self, seconds: float = -1) -> bool:
        """Sleep until `wake` is called; False where `seconds` have passed before."""
        return self._turn.acquire(timeout=seconds)

    def wake(self) -> None:
        """End `wait`, now or when it begins."""
        if self._turn.locked():
            self._turn.release()


class Crew:
    """See the module; `work` runs a call, whose own thread is then woken.

    RuntimeError where the system has no more threads, or Python is about to exit.
    """

    def __init__(self, work: Callable[[Call], None]):
        self._calls: SimpleQueue[Call] = SimpleQueue()
        # A daemon: it waits for calls until the process ends.
        threading.Thread(target=self._loop, args=(work,), name="tvm-sparse", daemon=True).start()

    def start(self, call: Call) -> None:
        """Begin `call`, which has its cores."""
        self._calls.put(call)

    def _loop(self, work: Callable[[Call], None]) -> None:
        while True:
            call = self._calls.get()
            work(call)
            call.wake()
            # Not kept until the next one comes.
            del call
