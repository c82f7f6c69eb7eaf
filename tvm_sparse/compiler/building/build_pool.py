"""Kernels lowered and compiled side by side: by worker processes and compilers, together as many as there are cores.

Lowering is Python's and takes one core; so it goes to workers, unless there is little of it. Compilers are processes of
their own, one for each part of a large source. What takes longest begins first. Kernels with the same source share its
code.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from tvm.target import Target

from tvm_sparse.codegen.cuda.launches import Launches
from tvm_sparse.codegen.cuda.nvcc import complaint, is_compiled_here, steps
from tvm_sparse.compiler.building.job_threads import JobThreads
from tvm_sparse.compiler.building.kernel_store import Facts, KernelRequest, KernelStore
from tvm_sparse.errors import BuildError, TvmSparseError, last_line
from tvm_sparse.files.temporary import TemporaryFolder
from tvm_sparse.measure import memory, worker_main
from tvm_sparse.measure.serve import answered
from tvm_sparse.measure.worker import Worker
from tvm_sparse.target.cpu import compiler_count
from tvm_sparse.target.resolve import target_json

# A worker is given up after so long; the largest kernels take half a minute of a core.
LOWERING_TIMEOUT_S = 900.0
# Memory that a worker, or a compiler, takes with a large part of a kernel.
JOB_BYTES = 3 << 29
# Seconds of building from which on processes are started for lowering, each of which takes some to start.
WORKERS_S = 30.0
# Share of a kernel's time that lowering takes, about.
LOWERING_SHARE = 0.15
# Seconds between two looks at how far everything is.
LOOK_S = 0.25

# A kernel as it was built, or why it was not.
Result = tuple[Facts, bytes] | TvmSparseError


class BuildPool:
    """Builds the kernels `requests`, by their keys, for `target`, and keeps them in `store`; used in `cuda_compiler`.

    A context manager that ends its processes.
    """

    def __init__(self, requests: Mapping[str, KernelRequest], target: Target, store: KernelStore):
        self._requests, self._target, self._store = requests, target, store
        self._total_s = sum(request.build_s for request in requests.values())
        self._threads = max(1, min(compiler_count(), memory.total_bytes() // JOB_BYTES))
        self._lock = threading.Lock()
        self._done_s = dict.fromkeys(requests, 0.0)
        self._codes: dict[str, Future[bytes]] = {}
        self._to_lower = len(requests)

    def __enter__(self) -> BuildPool:
        with ExitStack() as stack:
            self._folder = TemporaryFolder()
            stack.callback(self._folder.cleanup)
            count = min(self._threads, len(self._requests)) if self._total_s >= WORKERS_S else 0
            variables = {"TVM_NUM_THREADS": "1", "TMPDIR": self._folder.name}
            self._workers = [Worker(variables) for _ in range(count)]
            self._idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
            for worker in self._workers:
                stack.callback(worker.stop)
                self._idle.put(worker)
            # The one does the work; the other waits for it, a thread for each kernel.
            self._cores = stack.enter_context(JobThreads(self._threads))
            self._kernels = stack.enter_context(ThreadPoolExecutor(len(self._requests)))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        if kind is not None:
            self._kernels.shutdown(wait=False, cancel_futures=True)
            self._cores.cancel()
            for worker in self._workers:
                worker.kill()
        self._stack.close()

    @property
    def estimate_s(self) -> float:
        """About how long all of it takes, as estimated beforehand."""
        return self._total_s / self._threads

    @property
    def share(self) -> float:
        """How much of the work is done, about; 1 is all."""
        return sum(self._done_s.values()) / self._total_s

    def run(self, look: Callable[[dict[str, Result]], None]) -> dict[str, Result]:
        """The kernels; `look` is called with those that are there, now and then."""
        waiting = {
            self._kernels.submit(self._build, key, request, f"kernel{number}"): key
            for number, (key, request) in enumerate(self._requests.items())
        }
        results: dict[str, Result] = {}
        while waiting:
            done, _ = wait(waiting, timeout=LOOK_S, return_when=FIRST_COMPLETED)
            results.update({waiting.pop(future): future.result() for future in done})
            look(results)
        return results

    def _build(self, key: str, request: KernelRequest, name: str) -> Result:
        """Build one kernel; in a thread of its own."""
        try:
            # All lowering first: only then is it known what else there is to do.
            urgency = self._total_s + request.build_s
            facts, source = self._cores.submit(urgency, lambda: self._lowered(request, name)).result()
            self._done_s[key] = request.build_s * LOWERING_SHARE
            code = self._code(key, facts.code, source) if facts.launches is not None else b""
        except TvmSparseError as error:
            return error
        finally:
            self._done_s[key] = request.build_s
        self._store.keep_facts(key, facts)
        return facts, code

    def _lowered(self, request: KernelRequest, name: str) -> tuple[Facts, str]:
        """Facts and source of a kernel."""
        weight, source = (Path(self._folder.name, f"{name}{suffix}") for suffix in (".weight", ".cu"))
        request.weight.tofile(weight)
        answer = self._answer(
            {
                "action": "lower",
                "schedule": request.schedule,
                "decisions": request.decisions,
                "spec": request.spec.to_json(),
                "weight": str(weight),
                "target": target_json(self._target),
                "source": str(source),
            }
        )
        weight.unlink()
        where = f"schedule {request.schedule}"
        if "timeout" in answer:
            raise BuildError(where, f"no kernel in {answer['timeout']:g} s, which is too long")
        if "is_told" in answer:
            raise BuildError(answer["failure"])
        if "failure" in answer:
            raise BuildError(where, f"no kernel: {answer['failure']}")
        if answer["launches"] is None:
            return Facts(None), ""
        text = source.read_text()
        source.unlink()
        return Facts(Launches.from_json(answer["launches"]), answer["constants"], self._store.code_key(text)), text

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if not self._workers:
            return answered(worker_main.lower, request)
        worker = self._idle.get()
        try:
            return worker.ask(request, LOWERING_TIMEOUT_S)
        finally:
            with self._lock:
                self._to_lower -= 1
                is_needed = self._to_lower >= len(self._workers)
            if is_needed:
                self._idle.put(worker)
            else:
                # Compilers have use for its memory.
                worker.stop()

    def _code(self, key: str, code_key: str, source: str) -> bytes:
        """Code of `source`, compiled by the first kernel that has it; others wait for that."""
        with self._lock:
            is_first = code_key not in self._codes
            made = self._codes.setdefault(code_key, Future())
        if is_first:
            try:
                made.set_result(self._store.code_of(source, lambda: self._compiled(key, source)))
            except BaseException as error:
                made.set_exception(error)
        return made.result()

    def _compiled(self, key: str, source: str) -> bytes:
        if not is_compiled_here():
            return source.encode()
        parts, link = steps(source, self._target)
        seconds = self._requests[key].build_s * (1 - LOWERING_SHARE) / len(parts)
        jobs = [self._cores.submit(seconds, partial(self._step, part, key, seconds)) for part in parts]
        try:
            # Linking is little work, and would be queued behind the parts of all others.
            return link([job.result() for job in jobs])
        except (RuntimeError, OSError) as error:
            # Not the error itself, which holds the source.
            raise BuildError("CUDA kernel", f"cannot be compiled: {complaint(error) or last_line(error)}") from None
        finally:
            for job in jobs:
                job.cancel()

    def _step(self, part: Callable[[], bytes], key: str, seconds: float) -> bytes:
        code = part()
        with self._lock:
            self._done_s[key] += seconds
        return code
