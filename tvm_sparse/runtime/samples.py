"""Cut batches of tensors into others, of whatever library they are."""

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm

from tvm_sparse.runtime.tensors import DLPack, Library, Torch


def take(library: Library, value: Any, start: int, stop: int, size: int) -> Any:
    """Samples `start` to `stop` of a tensor, and zeros behind them up to `size` samples, as a compiled model takes it.

    A tensor of neither torch nor NumPy goes through the host's memory.
    """
    if isinstance(library, Torch):
        found = value.detach()[start:stop]
        if stop - start < size:
            padded = found.new_zeros((size, *found.shape[1:]))
            padded[: stop - start] = found
            return padded
        layout = library.layout(found)
        is_usable = layout.is_contiguous and layout.is_aligned
        return found if is_usable else library.aligned_copy(found)
    if isinstance(library, DLPack):
        copy = library.aligned_copy(value)
        return tvm.runtime.tensor(_padded(copy.numpy()[start:stop], size), copy.device)
    return value[start:stop] if stop - start == size else _padded(value[start:stop], size)


def _padded(array: np.ndarray, size: int) -> np.ndarray:
    padded = np.zeros((size, *array.shape[1:]), array.dtype)
    padded[: len(array)] = array
    return padded


def join(library: Library, parts: Sequence[Any], count: int) -> Any:
    """The first `count` samples of the results in `parts`, in one tensor of the library that the inputs are of."""
    if isinstance(library, Torch):
        return (parts[0] if len(parts) == 1 else sys.modules["torch"].cat(list(parts)))[:count]
    if isinstance(library, DLPack):
        joined = np.concatenate([part.numpy() for part in parts])[:count]
        return library.give_back(tvm.runtime.tensor(joined, parts[0].device))
    return np.concatenate(parts)[:count]
