"""The ten operators of Table 2 of Dong et al. 2020, and random pruned weights for them."""

import numpy as np

from tvm_sparse.conv.dtypes import FLOAT32
from tvm_sparse.conv.random_weights import normal_weight
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.conv.storage import rounded

# Number -> output height (= width), input channels, filters, kernel height (= width), padding on each side.
OPERATORS: dict[int, tuple[int, int, int, int, int]] = {
    1: (24, 1, 20, 5, 0),
    2: (8, 20, 50, 5, 0),
    3: (32, 3, 32, 5, 2),
    4: (16, 32, 32, 5, 2),
    5: (8, 32, 64, 5, 2),
    6: (56, 64, 64, 3, 1),
    7: (28, 128, 128, 3, 1),
    8: (224, 3, 64, 3, 1),
    9: (224, 64, 64, 3, 1),
    10: (112, 64, 128, 3, 1),
}


def spec(operator: int, batch: int = 1, dtype: str = FLOAT32) -> ConvSpec:
    """The convolution of one operator, without bias or ReLU, of tensors of type `dtype`."""
    out, c, k, kernel, padding = OPERATORS[operator]
    size = out + kernel - 1 - 2 * padding
    return ConvSpec(n=batch, c=c, h=size, w=size, k=k, r=kernel, s=kernel, padding=(padding,) * 4, dtype=dtype)


def weight(operator: int, density: float, seed: int = 0, dtype: str = FLOAT32) -> np.ndarray:
    """Normal random weight (K, C, R, S), of which the largest round(density * size) are kept.

    A float32 array, of numbers that `dtype` has.
    """
    return rounded(normal_weight(spec(operator), density, [seed, operator]), dtype)


def name(operator: int, batch: int, density: float) -> str:
    """How a line about one case begins."""
    return f"operator {operator}, batch {batch}, density {density:g}"
