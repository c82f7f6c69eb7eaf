"""Client of a worker process, restarted when it dies."""

import math
import sys
import threading
from collections.abc import Sequence
from typing import Any

from tvm_sparse.errors import BuildError
from tvm_sparse.measure.worker_process import Channel

# A worker's first answer waits for its imports, which take many seconds on a busy machine.
START_TIMEOUT_S = 180.0


class Worker:
    """A worker process, started on first use and again after it died, was killed or took too much memory."""

    command: Sequence[str] = (sys.executable, "-m", "tvm_sparse.measure.worker_main")

    def __init__(
        self,
        variables: dict[str, str],
        memory_bytes: float = math.inf,
        command: Sequence[str] | None = None,
        stop: threading.Event | None = None,
    ):
        self._variables, self.memory_bytes, self._stop = variables, memory_bytes, stop
        if command is not None:
            self.command = command
        self._channel: Channel | None = None
        self.is_killed = False

    def ask(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """The answer to `request`; ``{"timeout": s}`` or ``{"failure": cause}`` where the process gave none.

        A process that has grown is replaced, so that a limit on memory meets who uses it. Once `stop` is set,
        KeyboardInterrupt is raised.
        """
        if self.is_killed:
            return {"failure": "interrupted"}
        channel = self._channel
        if channel is None or not channel.is_alive() or channel.memory_bytes() > self.memory_bytes / 2:
            self.stop()
            channel = self._start()
        try:
            return channel.ask(request, timeout_s, self.memory_bytes, self._stop)
        finally:
            if channel.is_broken:
                self.stop()

    def kill(self) -> None:
        """End this worker, from any thread: who waits for an answer, or asks again, gets a failure."""
        self.is_killed = True
        if self._channel is not None:
            self._channel.kill()

    def stop(self) -> None:
        """Kill the process and everything it started."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _start(self) -> Channel:
        self._channel = Channel(self.command, self._variables)
        if self.is_killed:
            # Before there was one to kill.
            self._channel.kill()
        answer = self._channel.ask({"action": "warm"}, START_TIMEOUT_S, stop=self._stop)
        if answer != {}:
            raise BuildError("worker", "the process that builds kernels does not start", answer)
        return self._channel
