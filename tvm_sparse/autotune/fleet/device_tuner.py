"""What runs beside a device: tunes the layers that it is given, one trial each time it is asked.

A process of its own, in which `measure.worker_main` serves it, or an actor of Ray: it sees only its device, so all that
asks for "the GPU" means that one. It writes no log: records go, as lines, to whoever asks.
"""

from collections.abc import Iterator
from importlib import metadata
from typing import Any

import numpy as np

from tvm_sparse.autotune.fleet.job import Job
from tvm_sparse.autotune.layer import tune_layer
from tvm_sparse.cudnn import library
from tvm_sparse.errors import UsageError
from tvm_sparse.logs.record import TuningRecord
from tvm_sparse.measure.serve import Action, answered
from tvm_sparse.measure.worker_pool import WorkerPool
from tvm_sparse.target.compatibility import why_not_here
from tvm_sparse.target.fingerprint import fingerprint_of
from tvm_sparse.target.gpu_driver import gpu_arch, gpu_model
from tvm_sparse.target.resolve import resolve_target, target_json
from tvm_sparse.version import __version__


def versions() -> dict[str, str]:
    """Of what both sides must have alike, as records and decisions go from one to the other."""
    return {"tvm-sparse": __version__, "apache-tvm": metadata.version("apache-tvm")}


class DeviceTuner:
    """Tunes one layer after the other for the target of its first request, with workers that it keeps."""

    def __init__(self) -> None:
        self._pool = WorkerPool()
        self._records: Iterator[TuningRecord] = iter(())
        self._is_out_of_time = False
        self._early_end: str | None = None

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to ``hello``, ``begin``, ``advance`` or ``end``; ``{"failure": cause}`` where that fails."""
        return answered(getattr(self, f"_{request['action']}"), request)

    def _hello(self, request: dict[str, Any]) -> dict[str, Any]:
        """What is here: versions, the target, whose missing parts are this device's, and its fingerprint."""
        # What other versions make of the rest is not worth asking.
        if request["versions"] != versions():
            return {"versions": versions()}
        self._target = target = resolve_target(request["target"])
        fingerprint = fingerprint_of(target)
        if target.kind.name == "cuda":
            _require_gpu(str(target.attrs["arch"]))
            # Two cards may share an architecture, and without cuDNN kernels are compared with slower ones.
            fingerprint |= {"gpu": gpu_model(), "cudnn": library.version() or "none"}
        elif obstacle := why_not_here(target):
            raise UsageError("target", obstacle, hint="give a --target that this machine runs")
        return {"versions": versions(), "target": target_json(target), "fingerprint": fingerprint}

    def _begin(self, request: dict[str, Any]) -> dict[str, Any]:
        """Start the search for a job; the layer before is done."""
        weight = request["weight"]
        if isinstance(weight, str):
            weight = np.load(weight, allow_pickle=False)
        job = Job.from_json(request["job"], weight).shared(request["builders"], request["tuners"])
        self._is_out_of_time, self._early_end = False, None
        ends = self._note_time, job.starts, self._pool, self._note_end
        self._records = tune_layer(job.spec, job.weight, self._target, job.options, job.known, *ends)
        return {}

    def _advance(self, _request: dict[str, Any]) -> dict[str, Any]:
        """The next trial's record; at the end whether there was no time for more, or why it came early."""
        record = next(self._records, None)
        if record is not None:
            return {"record": record.to_line()}
        return {"out_of_time": self._is_out_of_time, "ended_early": self._early_end}

    def _end(self, _request: dict[str, Any]) -> dict[str, Any]:
        """End the workers."""
        self._pool.__exit__()
        return {}

    def _note_time(self) -> None:
        self._is_out_of_time = True

    def _note_end(self, sentence: str) -> None:
        self._early_end = sentence


def _require_gpu(arch: str) -> None:
    """UsageError unless this process sees a GPU of the target's architecture."""
    found = gpu_arch()
    if found is None:
        raise UsageError("target cuda", "CUDA sees no such GPU", hint="nvidia-smi lists those there are")
    if arch.rstrip("af") != found:
        raise UsageError("target cuda", "the GPU is another", found, arch, "give --target the GPU's architecture")


def actions() -> dict[str, Action]:
    """What `worker_main` serves in a process of a device's own."""
    return dict.fromkeys(("hello", "begin", "advance", "end"), DeviceTuner().answer)
