"""Run the kernels of codegen/cuda/slice.cu on the CPU: `mma` as plain code, between the threads of a warp."""

import ctypes
from functools import cache

import numpy as np
from cuda_emulator import MAX_THREADS, SHARED
from data_emulator import compiled, launched

from tvm_sparse.scheduling.cuda.library import parameters
from tvm_sparse.scheduling.cuda.library.kernel_library import WARP
from tvm_sparse.scheduling.cuda.slice.kernels import LIBRARIES, PARAMETERS
from tvm_sparse.scheduling.cuda.slice.tiling import SliceTiling

MULTIPLY = f"""
static unsigned held[{MAX_THREADS}][6];
template <typename T> static T of_lane(T value, int bits) {{
  const int lanes = current / 32 * 32;
  memcpy(held[current], &value, 4);
  meet(agreed, lanes, lanes + 32);
  T found;
  memcpy(&found, held[current ^ bits], 4);
  meet(agreed, lanes, lanes + 32);
  return found;
}}
// 16 rows of A times 8 columns of B.
template <typename Product>
static void add_products(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, int depth,
                         Product product) {{
  const int lanes = current / 32 * 32, lane = current % 32;
  memcpy(held[current], a, 16);
  held[current][4] = b0, held[current][5] = b1;
  meet(agreed, lanes, lanes + 32);
  for (int j = 0; j < 4; j++)
    for (int k = 0; k < depth; k++) sum[j] += product(lanes, lane / 4 + j / 2 * 8, k, lane % 4 * 2 + j % 2);
  meet(agreed, lanes, lanes + 32);
}}
// Columns of A and rows of B in half precision: pairs of 2 * (lane % 4), and 8 further.
template <float (&part)(unsigned, int)>
static float of_halves(int lanes, int row, int k, int column) {{
  return part(held[lanes + row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2], k % 2) *
         part(held[lanes + column * 4 + k % 8 / 2][4 + k / 8], k % 2);
}}
#ifdef TVM_SPARSE_HALF
static float element(unsigned bits, int which) {{
  unsigned short own = bits >> (16 * which);
  Element value;
  memcpy(&value, &own, 2);
  return value;
}}
static void multiply_add(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {{
  add_products(sum, a, b0, b1, 16, of_halves<element>);
}}
#else
static float of_tf32(int lanes, int row, int k, int column) {{
  return cut(held[lanes + row % 8 * 4 + k % 4][row / 8 + k / 4 * 2]) * cut(held[lanes + column * 4 + k % 4][4 + k / 4]);
}}
static float bfloat16(unsigned bits, int which) {{ return of_bfloat16(bits >> (16 * which) & 0xffff); }}
static void multiply_add(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {{
  add_products(sum, a, b0, b1, 8, of_tf32);
}}
static void add_corrections(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {{
  add_products(sum, a, b0, b1, 16, of_halves<bfloat16>);
}}
#endif
"""


@cache
def _library(multiplied: str) -> ctypes.CDLL:
    return compiled(MULTIPLY, LIBRARIES[multiplied])


def run(tiling: SliceTiling, weights: np.ndarray, arguments: dict[str, np.ndarray]) -> np.ndarray:
    """The output of a tiling's kernel; elements that it does not write are NaN."""
    chunks, stride = len(weights) // tiling.k_tiles, weights.shape[1]
    assert tiling.shared_bytes(chunks, stride) <= SHARED
    integers = parameters.arguments(PARAMETERS, tiling, chunks=chunks, stride=stride)
    spec, launch = tiling.spec, (tiling.blocks, 1, 1, WARP * tiling.warps, 1)
    emulated, library, kernel = _library(tiling.multiplied), LIBRARIES[tiling.multiplied], tiling.kernel.format(0)
    return launched(emulated, library, kernel, spec, weights, arguments, integers, *launch)
