"""A model on inputs that lie on its device, as a clock calls it."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm

from tvm_sparse.runtime.multi_shape_model import AnyModel


def caller(compiled: AnyModel, inputs: Sequence[np.ndarray]) -> Callable[[], Any]:
    """A function that runs the model on `inputs`, put on its device now, and returns when it has finished."""
    device = compiled.device
    placed = inputs if device.type == "cpu" else [tvm.runtime.tensor(value, device) for value in inputs]

    def call() -> Any:
        result = compiled(*placed)
        device.sync()
        return result

    return call
