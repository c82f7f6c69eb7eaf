"""Isolated building and running of candidate kernels: verified first, timed in turns with the dense rival.

Every candidate is built and run in a worker process (`worker`), never in this one: a candidate that hangs, crashes or
poisons its CUDA context costs only itself, and the cause is kept. This process holds no CUDA context.
"""

from __future__ import annotations

import json
import os
import queue
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from tvm_sparse import environment, reference
from tvm_sparse.conv import ConvSpec
from tvm_sparse.errors import BuildError
from tvm_sparse.records import Status
from tvm_sparse.worker import constants_path

if TYPE_CHECKING:
    from tvm.target import Target

# A worker's first answer waits for its imports, which take many seconds on a busy machine.
START_TIMEOUT_S = 180.0
# The arguments that a kernel is verified and timed with are drawn from this seed, so that results compare.
ARGUMENT_SEED = 2020


@dataclass(frozen=True)
class MeasureOptions:
    """Limits and repetitions of a measurement.

    Each of `repeats` measurements lasts at least `min_repeat_ms`; a build may take `build_timeout_s`, a run
    `run_timeout_s`.
    """

    repeats: int = 5
    min_repeat_ms: float = 5.0
    build_timeout_s: float = 90.0
    run_timeout_s: float = 60.0
    builders: int = field(default_factory=environment.available_cores)


@dataclass(frozen=True)
class Candidate:
    """A schedule name and the decisions to build it with (None for its defaults)."""

    schedule: str
    trace: Any = None


@dataclass(frozen=True)
class Outcome:
    """What became of a candidate: status and cause as in a tuning record, times in us, error in bounds."""

    status: Status
    cause: str = ""
    times_us: tuple[float, ...] = ()
    rival_times_us: tuple[float, ...] = ()
    error: float | None = None


class Measurer:
    """Builds and runs candidates for one convolution and weight; a context manager that ends its workers."""

    def __init__(self, spec: ConvSpec, weight: np.ndarray, target: Target, options: MeasureOptions | None = None):
        self.spec, self.target, self.options = spec, target, options or MeasureOptions()
        self._rival: str | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="tvm_sparse_")
        self._arrays = str(Path(self._folder.name) / "arrays.npz")
        self._write_arrays(weight)
        environment_variables = {"TVM_NUM_THREADS": str(environment.threads(target))}
        self._builders: queue.Queue[Worker] = queue.Queue()
        self._workers = [Worker(environment_variables) for _ in range(self.options.builders)]
        for worker in self._workers:
            self._builders.put(worker)
        self._runner = Worker(environment_variables)
        self._count = 0

    def __enter__(self) -> Measurer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for worker in (*self._workers, self._runner):
            worker.stop()
        self._folder.cleanup()

    def measure(self, candidates: Sequence[Candidate]) -> Iterator[Outcome]:
        """Build the candidates side by side, then verify and time them one after the other, in their order.

        Nothing is built while something is timed: on a machine with few cores that would disturb it.
        """
        jobs = [(candidate, self._new_library()) for candidate in candidates]
        with ThreadPoolExecutor(self.options.builders) as pool:
            failures = list(pool.map(lambda job: self._build(*job), jobs))
        for failure, (_, library) in zip(failures, jobs, strict=True):
            yield failure or self._run(library)
            # The files of a whole search would fill a small disk.
            for path in (library, constants_path(library)):
                Path(path).unlink(missing_ok=True)

    def set_rival(self, candidate: Candidate) -> None:
        """Build the dense kernel that later candidates are timed in turns with; BuildError where that fails."""
        library = self._new_library()
        failure = self._build(candidate, library)
        if failure:
            raise BuildError(f"convolution {self.spec.key}", f"the dense kernel does not build again: {failure.cause}")
        self._rival = library

    def _build(self, candidate: Candidate, library: str) -> Outcome | None:
        """Build one candidate; an outcome only where that failed."""
        request = {
            "action": "build",
            "spec": self.spec.to_json(),
            "arrays": self._arrays,
            "target": environment.target_json(self.target),
            "schedule": candidate.schedule,
            "trace": candidate.trace,
            "library": library,
        }
        worker = self._builders.get()
        try:
            answer = worker.ask(request, self.options.build_timeout_s)
        finally:
            self._builders.put(worker)
        return _failure(answer, "build_failed")

    def _run(self, library: str) -> Outcome:
        request = {
            "action": "run",
            "kind": self.target.kind.name,
            "arrays": self._arrays,
            "library": library,
            "rival": self._rival,
            "repeats": self.options.repeats,
            "min_repeat_ms": self.options.min_repeat_ms,
        }
        answer = self._runner.ask(request, self.options.run_timeout_s)
        failure = _failure(answer, "run_failed")
        if failure:
            return failure
        error = float(answer["error"])
        if not error <= 1:
            cause = f"the result differs from the float64 reference by {error:.3g} times the error bound"
            return Outcome("wrong", cause, error=error)
        return Outcome("ok", "", tuple(answer["times_us"]), tuple(answer["rival_times_us"]), error)

    def _new_library(self) -> str:
        self._count += 1
        return str(Path(self._folder.name) / f"kernel{self._count}.so")

    def _write_arrays(self, weight: np.ndarray) -> None:
        arguments = reference.random_arguments(self.spec, ARGUMENT_SEED)
        expected = reference.reference(
            self.spec, arguments["x"], weight, arguments.get("bias"), arguments.get("residual")
        )
        arrays = {"weight": weight, "value": expected.value, "bound": expected.bound, **arguments}
        np.savez(self._arrays, **arrays)  # type: ignore[arg-type]


def _failure(answer: dict[str, Any], status: Status) -> Outcome | None:
    if "timeout" in answer:
        return Outcome("timeout", f"{status.split('_', maxsplit=1)[0]} took longer than {answer['timeout']:g} s")
    if "failure" in answer:
        return Outcome(status, answer["failure"])
    return None


class Worker:
    """A worker process, started on first use and again after it died or was killed."""

    command: Sequence[str] = (sys.executable, "-m", "tvm_sparse.worker")

    def __init__(self, variables: dict[str, str]):
        self._variables = variables
        self._process: subprocess.Popen[str] | None = None
        self._errors: IO[str] | None = None

    def ask(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """The answer to `request`; ``{"timeout": s}`` or ``{"failure": cause}`` where the process gave none."""
        if self._process is None or self._process.poll() is not None:
            self.stop()
            self._start()
        answer = self._exchange(request, timeout_s)
        if answer is None:
            self.stop()
            return {"timeout": timeout_s}
        return answer

    def stop(self) -> None:
        """Kill the process and everything it started."""
        if self._process is not None:
            if self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.communicate()
            self._process = None
        if self._errors is not None:
            self._errors.close()
            self._errors = None

    def _start(self) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - lives as long as the process
        self._process = subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, **self._variables},
            # A group of its own: compilers that the worker starts die with it, and Ctrl-C reaches only the tuner.
            start_new_session=True,
        )
        answer = self._exchange({"action": "warm"}, START_TIMEOUT_S)
        if answer != {}:
            raise BuildError("worker", "the process that builds kernels does not start", answer)

    def _exchange(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any] | None:
        """Send a request and wait for its answer; None after `timeout_s`."""
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
        except BrokenPipeError:
            return {"failure": self._cause_of_death()}
        ready, _, _ = select.select([process.stdout], [], [], timeout_s)
        if not ready:
            return None
        line = process.stdout.readline()
        return json.loads(line) if line.endswith("\n") else {"failure": self._cause_of_death()}

    def _cause_of_death(self) -> str:
        assert self._process is not None and self._errors is not None
        code = self._process.wait()
        self._errors.seek(0)
        tail = " ".join(self._errors.read()[-800:].split())
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        return f"the worker process {how}; last output: {tail or 'none'}"
