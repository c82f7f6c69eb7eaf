"""A row of calls as a model makes them: what a kernel is timed in to meet its code where a model's layer does.

A kernel that is called again and again has its code in the caches nearest to the cores. In a model some fifty other
kernels run between two calls of it, and fetching its code can take longer than its arithmetic. A row stands for a model
whose layers are all like this one:

* **Code.** Code that holds the weights serves one layer: each call executes another copy of it, at another address.
  Code for a shape, that reads weights as data, serves all layers of the shape: two calls, three kernels apart, share a
  copy. Code that serves all layers of a model is there once.
* **Weights as data.** Each call has its own.
* **Input and output.** Two sets of tensors in turns, as a model's memory plan hands them from layer to layer: the input
  was just produced, and is in the caches as far as they hold it.
* **All the rest.** Before a row runs, so much memory is copied that a model's bytes lie between two runs of a copy.
"""

import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tvm_sparse.files.temporary import TemporaryFolder

# ResNet-50 has 53 convolutions of 24 shapes; layers of one shape are a block of three layers apart.
MAX_CALLS, BLOCK = 48, 3
# Of a kernel with so much code that fewer calls displace it, or that takes so long that fewer calls fill a measurement.
MIN_CALLS = 2 * BLOCK
# What one run of ResNet-50 at density 0.1 goes through: weights, 19 MB as data and 38 MB as code, and activations.
MODEL_BYTES = 32 << 20
# A set of tensors from which on no cache would hold a second one.
LARGE_BYTES = 256 << 20
# Non-zeros of a weight from which on its candidates are timed with cold code too, by target kind. On a CPU 4,000 are
# 100 KB and more of folded code: three times what its first level holds, and calls long enough to be made from Python.
_FROM_NON_ZEROS = {"cuda": 0, "llvm": 4_000}


class Sharing(Enum):
    """Which layers of a model share a kernel's code."""

    NONE = "none"
    SHAPE = "shape"
    MODEL = "model"


Call = Callable[[], Any]
# Tensors of one size on one device: from, to.
Copy = tuple[Any, Any]


@dataclass(frozen=True)
class Row:
    """Calls that are timed one after the other, and copies of tensors that are made before, without being timed."""

    calls: Sequence[Call]
    copies: Sequence[Copy] = ()


def is_timed_cold(kind: str, non_zeros: int) -> bool:
    """Whether kernels of target kind `kind` for a weight with so many non-zeros are timed with cold code too."""
    return non_zeros >= _FROM_NON_ZEROS.get(kind, math.inf)


def call_count(own_bytes: int, time_us: float, row_us: float, model_bytes: int = MODEL_BYTES) -> int:
    """Calls of a row for a kernel with `own_bytes` of code and weights, a multiple of `MIN_CALLS`.

    No more than go through a model's bytes, and than fill about `row_us`.
    """
    most = min(model_bytes // max(own_bytes, 1), int(row_us / max(time_us, 0.1)), MAX_CALLS)
    return max(most // MIN_CALLS, 1) * MIN_CALLS


def copy_of(call: int, sharing: Sharing) -> int:
    """Which copy of the code a call executes."""
    return {Sharing.NONE: call, Sharing.SHAPE: call // MIN_CALLS * BLOCK + call % BLOCK, Sharing.MODEL: 0}[sharing]


def load(library: str | Path) -> Any:
    """The module of a library, which goes with the last object that refers to it, unlike one that TVM loads by itself.

    A process has room for some ten thousand libraries, and a search loads that many copies.
    """
    # Knows how to read the GPU code in a library.
    import tvm  # noqa: F401
    import tvm_ffi

    return tvm_ffi.load_module(library, keep_module_alive=False)


def modules(library: str, count: int) -> list[Any]:
    """`library` loaded `count` times, its code at another address each time.

    From copies of the file: of one file a process has one image, however often it is loaded.
    """
    with TemporaryFolder() as folder:
        return [load(shutil.copy(library, Path(folder, f"{number}.so"))) for number in range(count)]


def cold_row(
    library: str,
    sharing: Sharing,
    constants: Sequence[Any],
    tensors: Sequence[Any],
    time_us: float,
    row_us: float,
    model_bytes: int = MODEL_BYTES,
    function: str = "main",
) -> Row:
    """The row of a kernel that takes about `time_us` with warm code; each of its calls has been made once.

    * `library`, `function`, `sharing`: of the kernel, and of its code.
    * `constants`: arrays made from its weight, on the device.
    * `tensors`: its other arguments, on the device: x, [bias], [residual], y.
    * `row_us`, `model_bytes`: how long the row may be, and how many bytes lie between two runs of a copy.
    """
    device = tensors[0].device
    code_bytes = Path(library).stat().st_size if sharing is Sharing.NONE else 0
    own_bytes = code_bytes + sum(map(size_bytes, constants))
    count = call_count(own_bytes, time_us, row_us, model_bytes)
    loaded = modules(library, copy_of(count - 1, sharing) + 1)
    sets = [list(tensors)]
    if sum(map(size_bytes, tensors)) < LARGE_BYTES:
        sets.append([tensor.copyto(device) for tensor in tensors])
    calls = []
    for number in range(count):
        x, *rest = sets[number % len(sets)]
        own = [constant.copyto(device) for constant in constants]
        calls.append(partial(loaded[copy_of(number, sharing)][function], x, *own, *rest))
    for call in calls:
        call()
    device.sync()
    produced = [pair for other in sets[1:] for pair in zip(tensors[:-1], other[:-1], strict=True)]
    return Row(calls, [*_displacing(model_bytes - count * own_bytes, device), *produced])


def size_bytes(tensor: Any) -> int:
    """Size of a tensor's elements."""
    return math.prod(tensor.shape) * np.dtype(str(tensor.dtype)).itemsize


def _displacing(size: int, device: Any) -> list[Copy]:
    """A copy that goes through about `size` bytes; none where a row's own go through them already."""
    half = size // 8
    return [(_floats(half, device), _floats(half, device))] if half > 0 else []


def _floats(count: int, device: Any) -> Any:
    import tvm

    # Written, as memory that never was is all one page of zeros on a CPU.
    return tvm.runtime.tensor(np.ones(count, np.float32), device)
