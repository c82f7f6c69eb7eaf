"""Random inputs of a model, and its outputs."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm

from tvm_sparse.conv.storage import is_half, stored
from tvm_sparse.frontend.passes.relax_graph import fixed_shape
from tvm_sparse.frontend.prepare import PreparedModel
from tvm_sparse.runtime.batched_model import AnyModel

SEED = 2020
# How inputs are drawn, one way after the other until the model takes them and makes numbers of them.
ATTEMPTS = 2


def random_inputs(prepared: PreparedModel, attempt: int) -> list[np.ndarray]:
    """An array for each input of a model.

    First standard normal numbers, and zeros and ones for integers; then numbers above 0 and below 1, of which logarithm
    and root are numbers, and integers of 0, which are an index into anything. Half-precision numbers are rounded to the
    model's own type too, so that both models are given the same.
    """
    rng = np.random.default_rng(SEED)
    specs = [(fixed_shape(each.ty) or (), str(each.ty.dtype)) for each in prepared.mod["main"].params]
    return [_random(rng, *spec, own, attempt) for spec, own in zip(specs, prepared.inputs, strict=True)]


def _random(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, own: str, attempt: int) -> np.ndarray:
    if np.dtype(dtype).kind == "b":
        return rng.integers(0, 2, shape).astype(dtype)
    if np.dtype(dtype).kind in "iu":
        return rng.integers(0, 2 - attempt, shape).astype(dtype)
    numbers = np.asarray(rng.uniform(0.01, 0.99, shape) if attempt else rng.standard_normal(shape), np.float32)
    return stored(stored(numbers, own) if is_half(own) else numbers, dtype)


def says_something(outputs: Sequence[np.ndarray]) -> bool:
    """Whether each array of floating-point numbers has one that is finite, if it has any."""
    return all(not each.size or bool(np.isfinite(each.astype(np.float64)).any()) for each in outputs)


def outputs_of(model: AnyModel, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """What a compiled model makes of `inputs`, also where it is one array."""
    found: Any = model(*(tvm.runtime.tensor(array, model.device) for array in inputs))
    return [output.numpy() for output in ([found] if model.signature.single else found)]
