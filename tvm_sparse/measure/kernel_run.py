"""In the worker: load, check against the reference, time."""

import functools
from typing import Any

import numpy as np

from tvm_sparse.conv.reference import Reference
from tvm_sparse.measure.cuda_graph_timer import GraphTimer

# Calls in one CUDA graph, at most: a replay of more takes longer to record than it gains.
MAX_GRAPH_CALLS = 200


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Check ``library`` against the reference in ``arrays``, then time it in turns with ``baseline`` (may be None).

    The output is filled with NaN first, so an element that the kernel does not write cannot pass.
    """
    inputs = inputs_of(request["arrays"], request["kind"])
    kernel = _Loaded(request["library"], inputs)
    error = kernel.error()
    if not error <= 1:
        return {"error": error, "times_us": [], "dense_times_us": []}
    contenders = [kernel, _Loaded(request["baseline"], inputs)] if request["baseline"] else [kernel]
    for contender in contenders:
        contender.calibrate(request["min_repeat_ms"])
    times: list[list[float]] = [[] for _ in contenders]
    for _ in range(request["repeats"]):
        for taken, contender in zip(times, contenders, strict=True):
            taken.append(contender.time_us())
    for contender in contenders:
        contender.close()
    return {"error": error, "times_us": times[0], "dense_times_us": times[1] if request["baseline"] else []}


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
        """Largest error of an output as a fraction of its bound."""
        return self.expected.worst(y, self.images)


@functools.lru_cache(maxsize=1)
def inputs_of(path: str, kind: str) -> _Inputs:
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
