"""Isolated building and running of candidate kernels: verified first, timed in turns with the dense baseline.

Every candidate is built and run in a worker process (`worker`), never in this one: a candidate that hangs, crashes or
poisons its CUDA context costs only itself, and the cause is kept. This process holds no CUDA context.
"""

import math
import queue
import statistics
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from tvm.target import Target

from tvm_sparse.conv import reference
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.errors import BuildError
from tvm_sparse.files.temporary import TemporaryFolder
from tvm_sparse.measure import device_lock, memory
from tvm_sparse.measure.call_row import is_timed_cold
from tvm_sparse.measure.outcome import Candidate, MeasureOptions, Outcome, Status
from tvm_sparse.measure.serve import constants_path
from tvm_sparse.measure.worker import Worker
from tvm_sparse.measure.worker_pool import WorkerPool
from tvm_sparse.schedules.lookup import arithmetic_of, family_of
from tvm_sparse.scheduling.code_size import COMPILERS_OF_LARGE, LARGE_NON_ZEROS
from tvm_sparse.scheduling.cuda.bottleneck.bottleneck import Bottleneck
from tvm_sparse.scheduling.cuda.bottleneck.sample import sample_arrays
from tvm_sparse.target.cpu import COMPILERS
from tvm_sparse.target.resolve import target_json, thread_count

# The arguments that a kernel is verified and timed with are drawn from this seed, so that results compare.
ARGUMENT_SEED = 2020
# Python handles a signal when the main thread runs next, which it does so often while it waits.
POLL_S = 0.1
# A dense kernel may reach a small share of what arithmetic allows, but not one in so many.
BEYOND_BELIEF = 30.0


class Measurer:
    """Builds and runs candidates for one convolution and weight; a context manager.

    Its workers are hired from `worker_pool` for each batch of candidates, so that several measurers can share them;
    without one they end with it.
    """

    def __init__(
        self,
        spec: ConvSpec,
        weight: np.ndarray,
        target: Target,
        options: MeasureOptions | None = None,
        worker_pool: WorkerPool | None = None,
    ):
        self.spec, self.target, self.options = spec, target, options or MeasureOptions()
        self._baseline: str | None = None
        self._others: dict[str, str] = {}
        self._folder = TemporaryFolder()
        self._arrays = str(Path(self._folder.name) / "arrays.npz")
        self._write_arrays(weight)
        self.worker_pool, self._owns_pool = worker_pool or WorkerPool(), worker_pool is None
        self._variables = variables = {"TVM_NUM_THREADS": str(thread_count(target))}
        self._non_zeros = non_zeros = int(np.count_nonzero(weight))
        self._is_timed_cold = self.options.cold and is_timed_cold(target.kind.name, non_zeros)
        builders = self.options.builders
        if target.kind.name == "cuda":
            is_large = non_zeros >= LARGE_NON_ZEROS
            builders = max(1, builders // COMPILERS_OF_LARGE) if is_large else builders
            variables[COMPILERS] = str(self.options.builders // builders)
        self._memory_bytes = self.options.memory_bytes or memory.total_bytes() // (builders + 2)
        self._builder_count, self._is_hired = builders, False
        self._device = device_lock.name(target.kind.name)
        self._count = 0

    def __enter__(self) -> "Measurer":
        return self

    def __exit__(self, *_: object) -> None:
        self._give_back()
        if self._owns_pool:
            self.worker_pool.__exit__()
        self._folder.cleanup()

    def measure(self, candidates: Sequence[Candidate]) -> Iterator[Outcome]:
        """Build the candidates side by side, verify and time them one after the other, in their order.

        A CPU builds nothing while something is timed, as that would disturb it. A GPU's candidates are timed as soon as
        they are built, while later ones are being built.
        """
        jobs = [(candidate, self._new_library()) for candidate in candidates]
        self._hire()
        with ThreadPoolExecutor(len(self._workers)) as pool:
            try:
                builds = [pool.submit(self._build, *job) for job in jobs]
                if self._device == "cpu":
                    for build in builds:
                        _result(build)
                for build, (candidate, library) in zip(builds, jobs, strict=True):
                    outcome = _result(build) or self._run(library, candidate.schedule)
                    if library == jobs[-1][1]:
                        # Who asks for no more leaves this generator here.
                        self._give_back()
                    yield outcome
                    # The files of a whole search would fill a small disk.
                    for path in (library, constants_path(library)):
                        Path(path).unlink(missing_ok=True)
            except BaseException as error:
                # Leaving the pool waits for its threads, and they for these; who only wants no more gets the last ones.
                pool.shutdown(wait=False, cancel_futures=True)
                if not isinstance(error, GeneratorExit):
                    for worker in self._workers:
                        worker.kill()
                raise
            finally:
                self._give_back()

    def _hire(self) -> None:
        self._is_hired = True
        self._workers = [self.worker_pool.hire(self._variables, self._memory_bytes) for _ in range(self._builder_count)]
        self._builders: queue.Queue[Worker] = queue.Queue()
        for worker in self._workers:
            self._builders.put(worker)
        self._runner = self.worker_pool.hire(self._variables, self._memory_bytes)

    def _give_back(self) -> None:
        """Doing it again changes nothing."""
        if self._is_hired:
            for worker in (*self._workers, self._runner):
                self.worker_pool.give_back(self._variables, worker)
        self._is_hired = False

    def set_baseline(self, candidate: Candidate, others: Sequence[Candidate] = ()) -> None:
        """Build the dense kernel that later candidates are timed in turns with; BuildError where that fails.

        `others` are timed in the same run, one of a schedule.
        """
        self._hire()
        try:
            self._baseline = self._again(candidate)
            self._others = {each.schedule: self._again(each) for each in others}
        finally:
            self._give_back()

    def _again(self, candidate: Candidate) -> str:
        """A library that stays, of a dense kernel that was built before."""
        library = self._new_library()
        failure = self._build(candidate, library)
        if failure:
            raise BuildError(f"convolution {self.spec.key}", f"the dense kernel does not build again: {failure.cause}")
        return library

    def _build(self, candidate: Candidate, library: str) -> Outcome | None:
        """Build one candidate; an outcome only where that failed."""
        request = {
            "action": "build",
            "spec": self.spec.to_json(),
            "arrays": self._arrays,
            "target": target_json(self.target),
            "schedule": candidate.schedule,
            "decisions": candidate.decisions,
            "library": library,
        }
        worker = self._builders.get()
        try:
            with device_lock.together(self._device) if self._device == "cpu" else nullcontext():
                answer = worker.ask(request, self.options.build_timeout_s)
        finally:
            self._builders.put(worker)
        return _failure(answer, "build_failed")

    def _run(self, library: str, schedule: str) -> Outcome:
        """Verify and time one candidate, twice where its time is beyond belief."""
        outcome = self._timed(library, schedule)
        if not self._is_too_fast(outcome):
            return outcome
        outcome = self._timed(library, schedule)
        if not self._is_too_fast(outcome):
            return outcome
        times_us = (statistics.median(each) for each in (outcome.times_us, outcome.dense_times_us))
        cause = "{:.3g} us beside {:.3g} of the dense kernel, twice, is less than its arithmetic allows".format(
            *times_us
        )
        return Outcome("run_failed", cause)

    def _is_too_fast(self, outcome: Outcome) -> bool:
        """Whether a candidate beat the dense kernel by far more than the share of arithmetic that zeros leave out."""
        if not (outcome.times_us and outcome.dense_times_us and self._non_zeros):
            return False
        allowed = BEYOND_BELIEF * math.prod(self.spec.weight_shape) / self._non_zeros
        return statistics.median(outcome.times_us) * allowed < statistics.median(outcome.dense_times_us)

    def _timed(self, library: str, schedule: str) -> Outcome:
        request = {
            "action": "run",
            "kind": self.target.kind.name,
            "arrays": self._arrays,
            "own_arrays": self._arrays_of(schedule),
            "library": library,
            "arithmetic": arithmetic_of(schedule),
            "pools": family_of(schedule).computes_pool,
            "baseline": self._baseline,
            "others": self._others,
            "repeats": self.options.repeats,
            "min_repeat_ms": self.options.min_repeat_ms,
            "cold": self._is_timed_cold,
            "model_bytes": self.options.model_bytes,
        }
        with device_lock.alone(self._device):
            answer = self._runner.ask(request, self.options.run_timeout_s)
        failure = _failure(answer, "run_failed")
        if failure:
            # A CUDA context may be poisoned, a heap overwritten: the next candidate runs in a new process.
            self._runner.stop()
            return failure
        error = float(answer["error"])
        if not error <= 1:
            self._runner.stop()
            cause = f"the result differs from the float64 reference by {error:.3g} times the error bound"
            return Outcome("wrong", cause, error=error)
        own, dense, unconverted, own_cold, dense_cold, unconverted_cold = (
            _rounded(answer.get(f"{of}{kind}"))
            for kind in ("times_us", "cold_times_us")
            for of in ("", "dense_", "unconverted_")
        )
        others, others_cold = (
            {name: list(times) for name in self._others if (times := _rounded(answer.get(f"{name} {kind}")))}
            for kind in ("times_us", "cold_times_us")
        )
        between = (unconverted or (), unconverted_cold or ())
        return Outcome("ok", "", own or (), dense or (), error, own_cold, dense_cold, *between, others, others_cold)

    def _new_library(self) -> str:
        self._count += 1
        return str(Path(self._folder.name) / f"kernel{self._count}.so")

    def _arrays_of(self, schedule: str) -> str:
        """The file of what kernels of a schedule are verified with."""
        if not family_of(schedule).computes_before:
            return self._arrays
        path = Path(self._folder.name) / "before.npz"
        if not path.exists():
            with np.load(self._arrays, allow_pickle=False) as arrays:
                weight = arrays["weight"]
            found = sample_arrays(Bottleneck.ending_with(self.spec), weight, ARGUMENT_SEED)
            np.savez(path, **found)  # type: ignore[arg-type]
        return str(path)

    def _write_arrays(self, weight: np.ndarray) -> None:
        images = reference.repetition(self.spec.n, ARGUMENT_SEED)
        distinct = replace(self.spec, n=int(images.max()) + 1)
        arguments = reference.random_arguments(distinct, ARGUMENT_SEED)
        expected = reference.reference(distinct, weight=weight, **arguments)
        arrays = {"weight": weight, "value": expected.value, "bound": expected.bound, "images": images, **arguments}
        arrays["largest_input"] = np.array(expected.largest_input)
        if expected.sums is not None:
            arrays["sums"] = expected.sums
        np.savez(self._arrays, **arrays)  # type: ignore[arg-type]


def _result(build: Future[Outcome | None]) -> Outcome | None:
    while not wait([build], POLL_S).done:
        pass
    return build.result()


def _rounded(times_us: Sequence[float] | None) -> tuple[float, ...] | None:
    """Five digits: more would be noise, and half of a compressed log."""
    return None if times_us is None else tuple(float(f"{each:.5g}") for each in times_us)


def _failure(answer: dict[str, Any], status: Status) -> Outcome | None:
    if "timeout" in answer:
        return Outcome("timeout", f"{status.split('_', maxsplit=1)[0]} took longer than {answer['timeout']:g} s")
    if "failure" in answer:
        return Outcome(status, answer["failure"])
    return None
