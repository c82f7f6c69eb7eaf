"""Worker processes that outlive one convolution: to start one takes seconds, as it imports TVM."""

import threading
from collections.abc import Mapping

from tvm_sparse.files.temporary import TemporaryFolder
from tvm_sparse.measure.worker import Worker


class WorkerPool:
    """Idle workers by their environment, and the folder for their temporary files; a context manager that ends both.

    Once `stop` is set, who waits for a worker gets KeyboardInterrupt.
    """

    def __init__(self, stop: threading.Event | None = None) -> None:
        self._stop = stop
        self._folder = TemporaryFolder()
        self._idle: list[tuple[Mapping[str, str], Worker]] = []
        # Workers that are hired now.
        self.lent = 0

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, *_: object) -> None:
        for _variables, worker in self._idle:
            worker.stop()
        self._folder.cleanup()

    def hire(self, variables: Mapping[str, str], memory_bytes: float) -> Worker:
        """A worker with these environment variables, an idle one where there is one; to be given back."""
        self.lent += 1
        for index, (own, worker) in enumerate(self._idle):
            if own == variables:
                del self._idle[index]
                worker.memory_bytes = memory_bytes
                return worker
        # What compilers leave behind when they are killed goes with the folder.
        return Worker({**variables, "TMPDIR": self._folder.name}, memory_bytes, stop=self._stop)

    def give_back(self, variables: Mapping[str, str], worker: Worker) -> None:
        """Keep `worker` for the next who hires one like it; one that was killed is ended."""
        self.lent -= 1
        if worker.is_killed:
            worker.stop()
        else:
            self._idle.append((variables, worker))
