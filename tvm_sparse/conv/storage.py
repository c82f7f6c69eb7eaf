"""In which types tensors are stored, and what rounding to one of them may cost.

Input, bias, residual and output of a convolution are stored in the type of its spec. Weights are float32 arrays, in a
half-precision model of numbers that its type has. Arithmetic is float32 throughout.
"""

from typing import NamedTuple

import ml_dtypes
import numpy as np

from tvm_sparse.conv.dtypes import BFLOAT16, FLOAT16, FLOAT32, HALVES


class Storage(NamedTuple):
    """A type's size, largest number and errors of rounding to nearest.

    `roundoff` is the largest relative one of a normal number, `underflow` the largest absolute one of a smaller number,
    half of the smallest there is.
    """

    size_bytes: int
    largest: float
    roundoff: float
    underflow: float


STORAGE = {
    FLOAT32: Storage(4, float(np.finfo(np.float32).max), 2.0**-24, 2.0**-150),
    FLOAT16: Storage(2, 65504.0, 2.0**-11, 2.0**-25),
    BFLOAT16: Storage(2, float(ml_dtypes.finfo(BFLOAT16).max), 2.0**-8, 2.0**-134),
}


def is_half(dtype: str) -> bool:
    """Whether it takes two bytes."""
    return dtype in HALVES


def stored(array: np.ndarray, dtype: str) -> np.ndarray:
    """`array` in the storage type; what is too large becomes infinite."""
    with np.errstate(over="ignore"):
        return array.astype(dtype, copy=False)


def rounded(array: np.ndarray, dtype: str) -> np.ndarray:
    """A float32 array whose numbers are those of `array`, rounded to the storage type."""
    return stored(array, dtype).astype(np.float32, copy=False)


def from_file(array: np.ndarray) -> np.ndarray:
    """An array of an .npz file as it was written: NumPy reads bfloat16 back as two bytes of anything."""
    return array.view(BFLOAT16) if array.dtype == np.dtype("V2") else array
