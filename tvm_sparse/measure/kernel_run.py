"""In the worker: load, check against the reference, time."""

import functools
from typing import Any

import numpy as np

from tvm_sparse.conv.error_bounds import EXACT
from tvm_sparse.conv.reference import Reference
from tvm_sparse.conv.storage import from_file
from tvm_sparse.measure.call_row import Sharing, cold_row, load
from tvm_sparse.measure.clock import Clock, cold_clock, in_turns, warm_clock
from tvm_sparse.measure.serve import UNCONVERTED, constants_path


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Check ``library`` against the reference in ``arrays``, then time it in turns with ``baseline`` (may be None).

    And with ``others``, kernels by name, whose times are the answer's ``<name> times_us``. With warm code, and where
    ``cold`` is true with cold code too. What converts its tensors is timed without that too. The output is filled with
    NaN first, so an element that the kernel does not write cannot pass. ``arithmetic`` says which bound it must meet,
    ``pools`` whether it writes the largest of each 2x2 outputs, and ``own_arrays`` what it is checked with where it
    computes more than the layer; the others do not.
    """
    # Not before the worker has kept TVM from importing torch.
    from tvm_sparse.cudnn import packed_function

    packed_function.register()
    inputs = inputs_of(request["arrays"], request["kind"], False)
    own = inputs_of(request.get("own_arrays", request["arrays"]), request["kind"], request.get("pools", False))
    kernel = _Loaded(request["library"], own)
    error = kernel.error(request.get("arithmetic", EXACT))
    if not error <= 1:
        return {"error": error, "times_us": [], "dense_times_us": []}
    contenders = {"": kernel}
    if request["baseline"]:
        contenders["dense_"] = _Loaded(request["baseline"], inputs)
    if kernel.module.implements_function(UNCONVERTED):
        contenders["unconverted_"] = _Loaded(request["library"], own, UNCONVERTED)
    contenders |= {f"{name} ": _Loaded(path, inputs) for name, path in request.get("others", {}).items()}
    for contender in contenders.values():
        # TVM's pool of scratch memory grows to what the largest needs before any graph is recorded, which works on with
        # the addresses of then.
        contender.call()
    clocks: dict[str, Clock] = {}
    for prefix, contender in contenders.items():
        clocks[f"{prefix}times_us"] = warm = contender.warm_clock(request["min_repeat_ms"])
        if request.get("cold"):
            clocks[f"{prefix}cold_times_us"] = contender.cold_clock(
                warm.time_us(), request["min_repeat_ms"], request["model_bytes"]
            )
    times = in_turns(clocks, request["repeats"])
    for clock in clocks.values():
        clock.close()
    return {"error": error, "dense_times_us": [], **times}


class _Inputs:
    """What all candidates for one convolution share: arguments on the device, a poisoned output, the reference.

    Only the distinct images of a batch and their reference are stored; ``images`` says which one each image repeats.
    """

    def __init__(self, path: str, kind: str, pools: bool = False):
        import tvm

        self.device = tvm.cuda(0) if kind == "cuda" else tvm.cpu(0)
        with np.load(path, allow_pickle=False) as arrays:
            self.images = arrays["images"]
            self._bounded: dict[str, Reference] = {}
            expected = Reference(arrays["value"], arrays["bound"], arrays.get("sums"), float(arrays["largest_input"]))
            self.expected = expected.pooled() if pools else expected
            self._weight = arrays.get("weight")
            names = [name for name in ("x", "bias", "residual") if name in arrays]
            found = {name: from_file(arrays[name]) for name in names}
        values = [found[name] if name == "bias" else found[name][self.images] for name in names]
        poisoned = np.full((len(self.images), *self.expected.value.shape[1:]), np.nan, values[0].dtype)
        self.tensors = [tvm.runtime.tensor(value, self.device) for value in values]
        self.poisoned = tvm.runtime.tensor(poisoned, self.device)

    def worst(self, y: np.ndarray, arithmetic: str = EXACT) -> float:
        """Largest error of an output as a fraction of the bound of kernels that compute so."""
        if arithmetic not in self._bounded:
            self._bounded[arithmetic] = self.expected.within(arithmetic, self._weight)
        return self._bounded[arithmetic].worst(y, self.images)


@functools.lru_cache(maxsize=2)
def inputs_of(path: str, kind: str, pools: bool = False) -> _Inputs:
    """Made once for all candidates of a search, and for those whose outputs are pooled."""
    return _Inputs(path, kind, pools)


class _Loaded:
    """A built kernel with its arguments on the device; in another layout these would be as many random numbers."""

    def __init__(self, library: str, inputs: _Inputs, function: str = "main"):
        import tvm

        self.library, self.inputs, self.device, self.function = library, inputs, inputs.device, function
        self.module = load(library)
        with np.load(constants_path(library), allow_pickle=False) as constants:
            names = list(constants)
            self.constants = [tvm.runtime.tensor(from_file(constants[name]), self.device) for name in names]
        self.sharing = Sharing(names[0].partition("_")[0]) if names else Sharing.NONE
        self.y = tvm.runtime.empty(inputs.poisoned.shape, str(inputs.poisoned.dtype), self.device)
        inputs.poisoned.copyto(self.y)
        self.tensors = [*inputs.tensors, self.y]
        self.arguments = [self.tensors[0], *self.constants, *self.tensors[1:]]

    def call(self) -> None:
        """Call the kernel once."""
        self.module[self.function](*self.arguments)

    def error(self, arithmetic: str = EXACT) -> float:
        """Largest error as a fraction of its bound."""
        self.call()
        self.device.sync()
        return self.inputs.worst(self.y.numpy(), arithmetic)

    def warm_clock(self, min_repeat_ms: float) -> Clock:
        """Times it by repeating it."""
        return warm_clock(self.module, self.arguments, min_repeat_ms, self.function)

    def cold_clock(self, warm_us: float, min_repeat_ms: float, model_bytes: int) -> Clock:
        """Times it as a model calls it; a row lasts about as long as a measurement."""
        arguments = (self.library, self.sharing, self.constants, self.tensors)
        row = cold_row(*arguments, warm_us, min_repeat_ms * 1e3, model_bytes, self.function)
        return cold_clock(row, self.device, min_repeat_ms)
