"""Numbers that every kernel of codegen/cuda takes in the same way."""

import numpy as np

from tvm_sparse.conv.dtypes import BFLOAT16, FLOAT16, FLOAT32
from tvm_sparse.conv.spec import ConvSpec

# Threads of a warp.
WARP = 32
# How names of kernels and libraries end that there are of each type of tensors: one model may use several.
OF_TYPE = {FLOAT32: "", FLOAT16: "_half", BFLOAT16: "_bfloat16"}


def epilogue(spec: ConvSpec) -> dict[str, int]:
    """What follows the sum."""
    # Of a float the bits.
    relu_max = int(np.float32(spec.relu_max).view(np.int32))
    has_bias, has_residual, relu = (int(each) for each in (spec.bias, spec.residual, spec.relu))
    return {"has_bias": has_bias, "has_residual": has_residual, "relu": relu, "relu_max": relu_max}


def divisor(name: str, value: int) -> dict[str, int]:
    """A divisor and the number that a multiplication needs to divide by it, as a signed 32-bit integer."""
    magic = (1 << 32) // value + 1 if value > 1 else 0
    return {name: value, f"{name}_m": magic - (1 << 32) if magic >= 1 << 31 else magic}
