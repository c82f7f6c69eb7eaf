"""Run the kernels of codegen/cuda/depthwise.cu on the CPU."""

import ctypes
from functools import cache

import numpy as np
from data_emulator import compiled, launched
from plane_emulator import MULTIPLY
from warpgroup_emulator import WARPGROUPS

from tvm_sparse.scheduling.cuda.depthwise.kernels import LIBRARIES, PARAMETERS
from tvm_sparse.scheduling.cuda.depthwise.tiling import THREADS, DepthwiseTiling
from tvm_sparse.scheduling.cuda.library import parameters


@cache
def _library(dtype: str) -> ctypes.CDLL:
    return compiled(WARPGROUPS + MULTIPLY, LIBRARIES[dtype])


def run(tiling: DepthwiseTiling, weights: np.ndarray, arguments: dict[str, np.ndarray]) -> np.ndarray:
    """The output of a tiling's kernel, in its layout, of `arguments` in NCHW; what it does not write is NaN."""
    spec, integers = tiling.spec, parameters.arguments(PARAMETERS, tiling)
    if tiling.nhwc:
        arguments = {**arguments, "x": np.ascontiguousarray(arguments["x"].transpose(0, 2, 3, 1))}
    launch = (tiling.blocks, 1, 1, THREADS, 1)
    emulated, library, shape = _library(spec.dtype), LIBRARIES[spec.dtype], tiling.in_layout(spec.output_shape)
    return launched(emulated, library, tiling.kernel, spec, weights, arguments, integers, *launch, shape=shape)
