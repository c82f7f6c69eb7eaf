"""Run the kernels of codegen/cuda/quad.cu on the CPU: `wgmma` as plain code, between the threads of a warp.

Products happen when they are asked for, so only what is written after a barrier shows that it was waited for.
"""

import ctypes
from functools import cache

import numpy as np
from cuda_emulator import MAX_CLUSTER, MAX_THREADS, SHARED
from data_emulator import compiled, launched
from warpgroup_emulator import WARPGROUPS

from tvm_sparse.conv.dtypes import FLOAT32
from tvm_sparse.scheduling.cuda.library import parameters
from tvm_sparse.scheduling.cuda.quad.kernels import LIBRARIES, PARAMETERS
from tvm_sparse.scheduling.cuda.quad.tiling import PIXELS, THREADS, QuadTiling

MULTIPLY = f"""
static void commit_products() {{}}
template <int LEFT> static void wait_for_products() {{}}
// What tensor cores multiply.
static float multiplied(unsigned short bits) {{
#ifdef TVM_SPARSE_BFLOAT16
  return of_bfloat16(bits);
#else
  return from_half(bits);
#endif
}}
static unsigned held[{MAX_THREADS} * {MAX_CLUSTER}][5];
// A row of A has, of each four positions, two numbers.
template <int N>
static void add_product(float (&sums)[N], const unsigned (&a)[4], unsigned long long b, unsigned choice) {{
  const int lanes = current / 32 * 32, lane = current % 32;
  memcpy(held[current], a, 16);
  held[current][4] = choice;
  meet(agreed, lanes, lanes + 32);
  for (int i = 0; i < N; i++)
    for (int four = 0; four < 8; four++) {{
      const int below = i / 2 % 2, row = lanes + lane / 4 * 4, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
      const unsigned bits = held[row + four % 4][below + four / 4 * 2];
      const unsigned chosen = held[row + four / 4][4] >> (below * 16 + four % 4 * 4) & 15;
      const int first = chosen & 3, second = chosen >> 2;
      if (first >= second) abort();
      for (int which = 0; which < 2; which++) {{
        const int k = 4 * four + (which ? second : first);
        sums[i] += multiplied(bits >> 16 * which) * multiplied(((const unsigned short*)at(b, k / 8, column))[k % 8]);
      }}
    }}
  meet(agreed, lanes, lanes + 32);
}}
static unsigned lowered(unsigned both) {{
  const float2 values = of_halves(both);
  return as_half(values.x / 2048, values.y / 2048);
}}
static unsigned max(unsigned a, unsigned b) {{ return a > b ? a : b; }}
static unsigned larger(unsigned one, unsigned other) {{
  other &= 0x7fff7fff;
  return max(one & 0xffff, other & 0xffff) | max(one >> 16, other >> 16) << 16;
}}
static unsigned short read_early(const void* at, bool inside) {{ return inside ? *(const unsigned short*)at : 0; }}
static void atomicMax(unsigned* at, unsigned value) {{ *at = max(*at, value); }}
"""
EXPORTED = f"""
static_assert(THREADS == {THREADS});
extern "C" int quotient_of(unsigned n, int d, int m) {{ return FastDivmod{{d, m}}.quotient(n); }}
"""

KERNELS = {each: [(m, n) for m, some in PIXELS[each].items() for n in some] for each in PIXELS}


@cache
def _library(multiplied: str) -> ctypes.CDLL:
    return compiled(WARPGROUPS + MULTIPLY, LIBRARIES[multiplied], EXPORTED)


def quotient(n: int, d: int, m: int) -> int:
    """The kernel's division of `n` by `d`, of which `m` is what `multiplier` says."""
    return int(_library(FLOAT32).quotient_of(n, d, m))


def run(tiling: QuadTiling, weights: np.ndarray, arguments: dict[str, np.ndarray]) -> np.ndarray:
    """The output of a tiling's kernel; elements that it does not write are NaN."""
    assert tiling.shared_bytes <= SHARED
    tile_rows = len(weights) // tiling.k_tiles
    integers = parameters.arguments(PARAMETERS, tiling, tile_rows=tile_rows, stride=weights.shape[1])
    launch = (tiling.blocks, 1, 1, THREADS, tiling.parts)
    of = tiling.multiplied
    return launched(_library(of), LIBRARIES[of], tiling.kernel, tiling.spec, weights, arguments, integers, *launch)
