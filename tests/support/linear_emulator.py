"""Run the kernels of codegen/cuda/linear.cu on the CPU: compiled as C++, with their primitives as plain code."""

import ctypes
from functools import cache

import numpy as np
from cuda_emulator import MAX_CLUSTER, SHARED
from data_emulator import compiled, launched

from tvm_sparse.scheduling.cuda.library import parameters
from tvm_sparse.scheduling.cuda.library.kernel_library import WARP
from tvm_sparse.scheduling.cuda.linear.kernels import LIBRARIES, PARAMETERS
from tvm_sparse.scheduling.cuda.linear.tiling import LANE_IMAGES, WARPS, LinearTiling

KERNELS = [(p, v) for v, some in LANE_IMAGES.items() for p in some]


@cache
def _library(dtype: str) -> ctypes.CDLL:
    return compiled("", LIBRARIES[dtype])


def run(tiling: LinearTiling, weights: np.ndarray, arguments: dict[str, np.ndarray]) -> np.ndarray:
    """The output of a tiling's kernel; elements that it does not write are NaN."""
    assert tiling.parts <= MAX_CLUSTER and tiling.shared_bytes <= SHARED
    integers = parameters.arguments(PARAMETERS, tiling, stride=weights.shape[1])
    spec, launch = tiling.spec, (*tiling.grid, WARP * WARPS, tiling.parts)
    emulated, library = _library(spec.dtype), LIBRARIES[spec.dtype]
    return launched(emulated, library, tiling.kernel, spec, weights, arguments, integers, *launch)
