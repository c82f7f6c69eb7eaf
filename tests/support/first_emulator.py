"""Run the kernels of codegen/cuda/first.cu on the CPU: `mma` as plain code, between the threads of a warp."""

import ctypes
from functools import cache

import numpy as np
from cuda_emulator import SHARED
from data_emulator import compiled, launched
from slice_emulator import MULTIPLY

from tvm_sparse.scheduling.cuda.first.kernels import LIBRARIES, PARAMETERS
from tvm_sparse.scheduling.cuda.first.tiling import WARPS, FirstTiling
from tvm_sparse.scheduling.cuda.library import parameters
from tvm_sparse.scheduling.cuda.library.kernel_library import WARP

PAIRS = """
struct uint2 { unsigned x, y; };
static unsigned chosen(unsigned one, unsigned other, bool larger) {
  unsigned found = 0;
  for (int j = 0; j < 2; j++) {
    const float a = element(one, j), b = element(other, j);
    found |= ((larger ? a >= b : a <= b) || a != a ? one : other) & 0xffffu << (16 * j);
  }
  return found;
}
static unsigned largest(unsigned one, unsigned other) { return chosen(one, other, true); }
static unsigned smallest(unsigned one, unsigned other) { return chosen(one, other, false); }
static unsigned shared_address(const void* at) {
  return (const unsigned char*)at - (const unsigned char*)shared_memory[rank];
}
static uint2 read_pair(unsigned at) {
  uint2 found;
  memcpy(&found, (const unsigned char*)shared_memory[rank] + at, 8);
  return found;
}
"""


@cache
def _library(dtype: str) -> ctypes.CDLL:
    return compiled(MULTIPLY + PAIRS, LIBRARIES[dtype])


def run(tiling: FirstTiling, weights: np.ndarray, arguments: dict[str, np.ndarray], blocks: int) -> np.ndarray:
    """The output of a tiling's kernel, (N, K, H, W) or (N, H, W, K); elements that it does not write are NaN."""
    assert tiling.shared_bytes <= SHARED
    spec, integers = tiling.spec, parameters.arguments(PARAMETERS, tiling, blocks=blocks)
    launch = (blocks, tiling.filter_tiles, 1, WARP * WARPS, 1)
    emulated, library, kernel = _library(spec.dtype), LIBRARIES[spec.dtype], tiling.kernel
    return launched(emulated, library, kernel, spec, weights, arguments, integers, *launch, shape=tiling.y_shape)
