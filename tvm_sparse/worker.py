"""The process in which kernels are built and run: ``python -m tvm_sparse.worker``.

It reads one JSON request a line from standard input and answers with one JSON line each. Only paths and numbers travel,
so nothing is pickled. What a kernel does to the process (crash, hang, poisoned CUDA context) ends with the process;
`measure` starts another.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import resource
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from tvm_sparse.conv import ConvSpec
from tvm_sparse.cuda_graph import GraphTimer
from tvm_sparse.errors import TvmSparseError
from tvm_sparse.reference import Reference

# Calls in one CUDA graph, at most: a replay of more takes longer to record than it gains.
MAX_GRAPH_CALLS = 200


def build(request: dict[str, Any]) -> dict[str, Any]:
    """Build ``schedule`` with ``trace`` for ``spec`` and the weight in ``arrays``; writes ``library``."""
    from tvm.target import Target

    from tvm_sparse import lowering, space

    spec = ConvSpec.from_json(request["spec"])
    with np.load(request["arrays"], allow_pickle=False) as arrays:
        weight = arrays["weight"]
    target = Target(request["target"])
    kernel = space.kernel(request["schedule"], spec, weight, target, request["trace"])
    lowering.build(kernel.func, target).export_library(request["library"])
    np.savez(constants_path(request["library"]), *kernel.constants)
    return {}


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Check ``library`` against the reference in ``arrays``, then time it in turns with ``rival`` (may be None).

    The output is filled with NaN first, so an element that the kernel does not write cannot pass.
    """
    inputs = _inputs(request["arrays"], request["kind"])
    kernel = _Loaded(request["library"], inputs)
    error = kernel.error()
    if not error <= 1:
        return {"error": error, "times_us": [], "rival_times_us": []}
    contenders = [kernel, _Loaded(request["rival"], inputs)] if request["rival"] else [kernel]
    for contender in contenders:
        contender.calibrate(request["min_repeat_ms"])
    times: list[list[float]] = [[] for _ in contenders]
    for _ in range(request["repeats"]):
        for taken, contender in zip(times, contenders, strict=True):
            taken.append(contender.time_us())
    for contender in contenders:
        contender.close()
    return {"error": error, "times_us": times[0], "rival_times_us": times[1] if request["rival"] else []}


def replay(request: dict[str, Any]) -> dict[str, Any]:
    """Replay ``trace`` on the space ``schedule`` of ``spec`` and a weight of ``pattern``; see `vetting`."""
    from tvm.target import Target

    from tvm_sparse import space
    from tvm_sparse.pattern import SparsityPattern

    spec, pattern = ConvSpec.from_json(request["spec"]), SparsityPattern(**request["pattern"])
    space.replay(space.find(request["schedule"], spec, pattern, Target(request["target"])), request["trace"])
    return {}


def constants_path(library: str) -> str:
    """Where the arrays made from the weight lie beside a kernel's library."""
    return f"{library}.npz"


class _Inputs:
    """What all candidates for one convolution share: arguments on the device, a poisoned output, the reference.

    Only the distinct images of a batch and their reference are stored; ``images`` says which one each image repeats.
    """

    def __init__(self, path: str, kind: str):
        import tvm

        self.device = tvm.cuda(0) if kind == "cuda" else tvm.cpu(0)
        with np.load(path, allow_pickle=False) as arrays:
            self.images = arrays["images"]
            self.expected = Reference(arrays["value"], arrays["bound"])
            names = [name for name in ("x", "bias", "residual") if name in arrays]
            values = [arrays[name] if name == "bias" else arrays[name][self.images] for name in names]
        poisoned = np.full((len(self.images), *self.expected.value.shape[1:]), np.nan, np.float32)
        self.tensors = [tvm.runtime.tensor(value, self.device) for value in values]
        self.poisoned = tvm.runtime.tensor(poisoned, self.device)

    def worst(self, y: np.ndarray) -> float:
        """Largest error of an output as a fraction of its bound.

        An image that repeats another has the same error where it has the same result, which is found much sooner.
        """
        outs: dict[int, np.ndarray] = {}
        worst = 0.0
        for image, out in zip(self.images.tolist(), y, strict=True):
            like = outs.setdefault(image, out)
            if like is out or not np.array_equal(out, like):
                worst = max(worst, Reference(self.expected.value[image], self.expected.bound[image]).worst(out))
        return worst


@functools.lru_cache(maxsize=1)
def _inputs(path: str, kind: str) -> _Inputs:
    """Made once for all candidates of a search."""
    return _Inputs(path, kind)


class _Loaded:
    """A built kernel with its arguments on the device."""

    def __init__(self, library: str, inputs: _Inputs):
        import tvm

        self.inputs, self.device = inputs, inputs.device
        self.module = tvm.runtime.load_module(library)
        with np.load(constants_path(library), allow_pickle=False) as constants:
            made = [tvm.runtime.tensor(constants[name], self.device) for name in constants]
        x, *epilogue = inputs.tensors
        self.y = tvm.runtime.empty(inputs.poisoned.shape, "float32", self.device)
        inputs.poisoned.copyto(self.y)
        self.arguments = [x, *made, *epilogue, self.y]
        self.timer: GraphTimer | None = None
        self.number = 1

    def call(self) -> None:
        """Call the kernel once."""
        self.module["main"](*self.arguments)

    def error(self) -> float:
        """Largest error as a fraction of its bound."""
        self.call()
        self.device.sync()
        return self.inputs.worst(self.y.numpy())

    def calibrate(self, min_repeat_ms: float) -> None:
        """Choose how many calls one measurement holds, so that it lasts at least `min_repeat_ms`."""
        self.time_us()
        self.number = max(1, round(min_repeat_ms * 1000 / max(self.time_us(), 0.1)))
        if self.device.type == "cuda":
            self.timer = GraphTimer(self.device, self.call, min(self.number, MAX_GRAPH_CALLS))

    def time_us(self) -> float:
        """Mean time of one call."""
        if self.timer is not None:
            return self.timer.time_us()
        timer = self.module.time_evaluator("main", self.device, number=self.number, repeat=1)
        return float(timer(*self.arguments).mean) * 1e6

    def close(self) -> None:
        """Free the graph; memory is freed with the object."""
        if self.timer is not None:
            self.timer.close()


def database_write(request: dict[str, Any]) -> dict[str, Any]:
    """See `metaschedule_db.write`."""
    from tvm_sparse import metaschedule_db

    return metaschedule_db.write(request)


def database_read(request: dict[str, Any]) -> dict[str, Any]:
    """See `metaschedule_db.read`."""
    from tvm_sparse import metaschedule_db

    return metaschedule_db.read(request)


_ACTIONS = {
    "build": build,
    "run": run,
    "replay": replay,
    "database_write": database_write,
    "database_read": database_read,
    "warm": lambda _request: {},
}


def main() -> None:
    """Serve requests until standard input closes or the tuner dies."""
    threading.Thread(target=_die_with, args=(os.getppid(),), daemon=True).start()
    # A crash leaves no file as large as this process.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Where memory runs out, this process goes before its tuner; some containers do not let it choose.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    # Answers go to the original standard output; whatever a compiler or kernel prints goes to standard error.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    # TVM imports torch where it is installed, which costs seconds and is of no use here.
    sys.modules["torch"] = None  # type: ignore[assignment]
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = _ACTIONS[request["action"]](request)
        except TvmSparseError as error:
            answer = {"failure": str(error)}
        except (RuntimeError, ValueError, TypeError, MemoryError, OSError) as error:
            answer = {"failure": f"{type(error).__name__}: {_tail(str(error))}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _die_with(parent: int) -> None:
    """End this process, and the compilers it started, once its parent is gone: a killed tuner leaves nothing behind."""
    while os.getppid() == parent:
        time.sleep(1)
    os.killpg(0, signal.SIGKILL)


def _tail(text: str, characters: int = 1500) -> str:
    """The end of a message, where compilers and TVM put the reason."""
    return text.strip()[-characters:]


if __name__ == "__main__":
    main()
