"""Run the kernels of codegen/cuda/plane.cu on the CPU: `wgmma` as plain code, between the threads of a warp.

Products happen when they are asked for, so only what is written after a barrier shows that it was waited for.
"""

import ctypes
from functools import cache

import numpy as np
from cuda_emulator import PRELUDE, SHARED
from data_emulator import MEETING, PRIMITIVES, compiled, passed
from slice_emulator import LAUNCH
from warpgroup_emulator import WARPGROUPS

from tvm_sparse.codegen.cuda import kernel_library
from tvm_sparse.scheduling.cuda.plane.tiling import LIBRARIES, PIXELS, THREADS, PlaneTiling, geometry

MULTIPLY = """
#include <strings.h>
#define TVM_SPARSE_PLANE_PRIMITIVES
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
# A launch of kernels with one template argument, whose tensors' integers begin with the stride.
ALONE = """
template <int N, int> static void convolution(const Geometry& g, int, int stride, const Element* x, const int4* weights,
                                              const Element* bias, const Element* residual, Element* y) {
  convolution<N>(g, stride, x, weights, bias, residual, y);
}
"""


@cache
def _library(dtype: str) -> ctypes.CDLL:
    name = LIBRARIES[dtype]
    launch = LAUNCH.format(kernels=", ".join(f"body<{each}, 0>" for each in PIXELS[dtype]))
    defined = "".join(f"#define {each}\n" for each in kernel_library.LIBRARIES[name].defined)
    emulated = defined + PRELUDE + PRIMITIVES + MEETING + WARPGROUPS + MULTIPLY
    return compiled(emulated + kernel_library.source(name) + ALONE + launch)


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
    spec = tiling.spec
    fields = geometry(tiling, multiprocessors, SHARED)
    assert 16 * weights.shape[1] + tiling.ring_bytes(1) <= SHARED
    y, pointers = passed(spec, weights, arguments, fields)
    blocks = tiling.k_tiles * tiling.workers(multiprocessors)
    numbers = (len(fields), PIXELS[spec.dtype].index(tiling.pixels), blocks, THREADS, 1)
    library = _library(spec.dtype)
    ctypes.c_int.in_dll(library, "late_copies").value = late_copies
    library.launch(*pointers[:5], 0, weights.shape[1], pointers[5], *numbers)
    return y
