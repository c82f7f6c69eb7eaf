"""Random inputs of a model, and its outputs."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tvm_sparse.conv.storage import stored

if TYPE_CHECKING:
    from tvm_sparse.runtime.multi_shape_model import AnyModel
    from tvm_sparse.runtime.signature import TensorSpec

# How inputs are drawn, one way after the other until the model takes them and makes numbers of them.
ATTEMPTS = 2


def random_inputs(specs: "Iterable[TensorSpec]", seed: int, attempt: int = 0) -> list[np.ndarray]:
    """An array for each input of a model.

    First standard normal numbers, and zeros and ones for integers; then numbers above 0 and below 1, of which logarithm
    and root are numbers, and integers of 0, which are an index into anything.
    """
    rng = np.random.default_rng(seed)
    return [_random(rng, spec.shape, spec.dtype, attempt) for spec in specs]


def _random(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, attempt: int) -> np.ndarray:
    if np.dtype(dtype).kind == "b":
        return rng.integers(0, 2, shape).astype(dtype)
    if np.dtype(dtype).kind in "iu":
        return rng.integers(0, 2 - attempt, shape).astype(dtype)
    numbers = rng.uniform(0.01, 0.99, shape) if attempt else rng.standard_normal(shape)
    return stored(np.asarray(numbers, np.float32), dtype)


def outputs_of(model: "AnyModel", inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """What a compiled model makes of `inputs`, also where it is one array."""
    import tvm

    found: Any = model(*(tvm.runtime.tensor(array, model.device) for array in inputs))
    return [output.numpy() for output in ([found] if model.signature.single else found)]
