"""Run the kernels of codegen/cuda/plane.cu on the CPU: `wgmma` as plain code, between the threads of a warp.

Products happen when they are asked for, so only what is written after a barrier shows that it was waited for.
"""

import ctypes
from functools import cache

import numpy as np
from cuda_emulator import SHARED
from data_emulator import compiled, launched
from warpgroup_emulator import WARPGROUPS

from tvm_sparse.scheduling.cuda.library import parameters
from tvm_sparse.scheduling.cuda.plane.kernels import LIBRARIES, PARAMETERS
from tvm_sparse.scheduling.cuda.plane.tiling import THREADS, PlaneTiling

MULTIPLY = """
#include <strings.h>
static void commit_products() {}
template <int LEFT> static void wait_for_products() {}
// What tensor cores multiply.
#ifdef TVM_SPARSE_BFLOAT16
typedef nv_bfloat16 Part;
#else
typedef half Part;
#endif
static float element(const unsigned char* from) {
  Part value;
  memcpy(&value, from, 2);
  return value;
}
static int same_of_all(int value) { return value; }
static int first_bit(unsigned bits) { return ffs(bits) - 1; }
static void atomicMax(unsigned* at, unsigned value) { *at = *at > value ? *at : value; }
static void atomicOr(unsigned* at, unsigned value) { *at |= value; }
static float part_of(unsigned pair, int which) {
  const unsigned short bits = pair >> 16 * which;
  return element((const unsigned char*)&bits);
}
static unsigned as_pair(float first, float second) {
  const Part both[2] = {first, second};
  unsigned pair;
  memcpy(&pair, both, 4);
  return pair;
}
static float smaller(float one, float other) { return one < other || one != one ? one : other; }
static unsigned smaller(unsigned one, unsigned other) {
  return as_pair(smaller(part_of(one, 0), part_of(other, 0)), smaller(part_of(one, 1), part_of(other, 1)));
}
static float larger(float one, float other) { return one > other || one != one ? one : other; }
static unsigned larger(unsigned one, unsigned other) {
  return as_pair(larger(part_of(one, 0), part_of(other, 0)), larger(part_of(one, 1), part_of(other, 1)));
}
static unsigned read_word(const Element* x, unsigned at, bool inside) {
  if (at % 4 && inside) abort();
  return inside ? *(const unsigned*)((const char*)x + at) : 0;
}
static unsigned read_half(const Element* x, unsigned at, bool inside) {
  return inside ? *(const unsigned short*)((const char*)x + at) : 0;
}
template <int N>
static void add_product(float (&sums)[N], unsigned long long a, unsigned long long b) {
  const int warp = current % blockDim.x / 32 % 4, lane = current % 32;
  for (int i = 0; i < N; i++)
    for (int k = 0; k < 16; k++) {
      const int row = warp * 16 + lane / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
      sums[i] += element(at(a, k / 8, row) + k % 8 * 2) * element(at(b, k / 8, column) + k % 8 * 2);
    }
}
"""


@cache
def _library(dtype: str) -> ctypes.CDLL:
    return compiled(WARPGROUPS + MULTIPLY, LIBRARIES[dtype])


def run(
    tiling: PlaneTiling,
    weights: np.ndarray,
    arguments: dict[str, np.ndarray],
    multiprocessors: int = 3,
    late_copies: int = 0,
) -> np.ndarray:
    """The output of a tiling's kernel on a GPU of so many; elements that it does not write are NaN.

    Before copies have come, all other threads have their turn `late_copies` times.
    """
    spec, workers = tiling.spec, tiling.workers(multiprocessors)
    assert 16 * weights.shape[1] + tiling.ring_bytes(1) <= SHARED
    given = {"stride": weights.shape[1], "workers": workers, "shared_units": SHARED // 16}
    integers = parameters.arguments(PARAMETERS, tiling, **given)
    emulated, library = _library(spec.dtype), LIBRARIES[spec.dtype]
    ctypes.c_int.in_dll(emulated, "late_copies").value = late_copies
    launch = (tiling.k_tiles * workers, 1, 1, THREADS, 1)
    return launched(emulated, library, tiling.kernel, spec, weights, arguments, integers, *launch)
