"""Run the kernels of codegen/cuda/sparse_pairs.cu on the CPU: `wgmma` as plain code, between the threads of a warp.

Products happen when they are asked for, so only what is written after a barrier shows that it was waited for.
"""

import ctypes
from functools import cache
from pathlib import Path

import numpy as np
from cuda_emulator import MAX_CLUSTER, MAX_THREADS, PRELUDE, SHARED
from data_emulator import MEETING, PRIMITIVES, compiled, passed
from tensor_emulator import LAUNCH
from warpgroup_emulator import WARPGROUPS

from tvm_sparse.codegen.cuda import kernel_library
from tvm_sparse.scheduling.cuda.pairs.tiling import LIBRARY, M_TILES, PIXELS, THREADS, PairTiling, geometry

MULTIPLY = f"""
#define TVM_SPARSE_PAIR_PRIMITIVES
static void commit_products() {{}}
template <int LEFT> static void wait_for_products() {{}}
static unsigned held[{MAX_THREADS} * {MAX_CLUSTER}][5];
// A row of A has, of each pair of positions, `values` numbers; `of_b` is the byte of B's for a column of all.
template <int N, typename Add>
static void add(int selected, float (&sums)[N], const unsigned (&a)[4], unsigned choice, Add product) {{
  const int lanes = current / 32 * 32, lane = current % 32;
  memcpy(held[current], a, 16);
  held[current][4] = choice;
  meet(agreed, lanes, lanes + 32);
  for (int i = 0; i < N; i++)
    for (int pair = 0; pair < 8; pair++) {{
      const int below = i / 2 % 2, quad = lanes + lane / 4 * 4;
      const unsigned choices = held[quad + 2 * selected + pair / 4][4];
      sums[i] += product(held[quad + pair % 4][below + pair / 4 * 2], choices >> (below * 16 + pair % 4 * 4) & 15, pair,
                         i / 4 * 8 + lane % 4 * 2 + i % 2);
    }}
  meet(agreed, lanes, lanes + 32);
}}
template <int SELECTED, int N>
static void add_product(float (&sums)[N], const unsigned (&a)[4], unsigned long long b, unsigned choice) {{
  add(SELECTED, sums, a, choice, [&](unsigned bits, unsigned chosen, int pair, int column) {{
    if (chosen != 4 && chosen != 14) abort();
    const int k = 2 * pair + (chosen == 14);
    const unsigned other = ((const unsigned*)at(b, k / 4, column))[k % 4];
    return cut(bits) * cut(other);
  }});
}}
template <int SELECTED, int N>
static void add_corrections(float (&sums)[N], const unsigned (&a)[4], unsigned long long b, unsigned choice) {{
  add(SELECTED, sums, a, choice, [&](unsigned bits, unsigned chosen, int pair, int column) {{
    if ((chosen & 3) >= chosen >> 2) abort();
    const int k = 4 * pair + (chosen & 3), l = 4 * pair + (chosen >> 2);
    const float one = of_bfloat16(((const unsigned short*)at(b, k / 8, column))[k % 8]);
    const float two = of_bfloat16(((const unsigned short*)at(b, l / 8, column))[l % 8]);
    return of_bfloat16(bits & 0xffff) * one + of_bfloat16(bits >> 16) * two;
  }});
}}
"""
EXPORTED = f"""
static_assert(128 * (MULTIPLIERS + WRITERS) == {THREADS});
extern "C" int quotient_of(unsigned n, int d, int m) {{ return quotient(n, d, m); }}
"""
KERNELS = [(m, n) for m in M_TILES for n in PIXELS]


@cache
def _library(folder: Path) -> ctypes.CDLL:
    path = folder / f"{LIBRARY}.cc"
    launch = LAUNCH.format(kernels=", ".join(f"body<{m}, {n}>" for m, n in KERNELS))
    emulated = PRELUDE + PRIMITIVES + MEETING + WARPGROUPS + MULTIPLY
    path.write_text(emulated + kernel_library.source(LIBRARY) + EXPORTED + launch)
    return compiled(path)


def quotient(n: int, d: int, m: int, folder: Path) -> int:
    """The kernel's division of `n` by `d`, of which `m` is what `divisor` says."""
    return int(_library(folder).quotient_of(n, d, m))


def run(tiling: PairTiling, weights: np.ndarray, arguments: dict[str, np.ndarray], folder: Path) -> np.ndarray:
    """The output of a tiling's kernel; elements that it does not write are NaN."""
    spec, slabs = tiling.spec, len(weights) // tiling.k_tiles
    assert tiling.shared_bytes <= SHARED
    fields = geometry(tiling)
    y, pointers = passed(spec, weights, arguments, fields)
    kernel = KERNELS.index((tiling.m_tiles, tiling.pixels))
    numbers = (len(fields), kernel, tiling.blocks, THREADS, tiling.parts)
    _library(folder).launch(*pointers[:5], slabs, weights.shape[1], pointers[5], *numbers)
    return y
