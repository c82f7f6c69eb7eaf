"""What kernels must show that multiply float32 as sums of two float16 numbers."""

from collections.abc import Callable

import numpy as np

from tvm_sparse.conv import reference
from tvm_sparse.conv.error_bounds import TF32, THREE_HALF
from tvm_sparse.conv.spec import ConvSpec


def check_low_parts(spec: ConvSpec, weight: np.ndarray, run: Callable[[np.ndarray], np.ndarray]) -> None:
    """What `run` computes of an input is hundreds of times as near as TF32; inputs that are cut to that are not."""
    x = reference.random_arguments(spec, 1)["x"]
    expected, y = reference.reference(spec, x, weight), run(x)
    assert expected.within(THREE_HALF, weight).worst(y) < 0.1
    assert expected.within(TF32, weight).worst(y) < 1 / 300
    cut = reference.reference(spec, (x.view(np.int32) & -0x2000).view(np.float32), weight).value.astype(np.float32)
    assert expected.within(THREE_HALF, weight).worst(cut) > 1
