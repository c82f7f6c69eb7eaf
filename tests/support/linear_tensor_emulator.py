"""Run the kernels of codegen/cuda/linear_tensor.cu on the CPU: `wgmma` as plain code, between the threads of a warp.

Products happen when they are waited for, not sooner, so that what is overwritten too early shows.
"""

import ctypes
from functools import cache

import numpy as np
from cuda_emulator import MAX_CLUSTER, MAX_THREADS, SHARED
from data_emulator import compiled, launched
from warpgroup_emulator import WARPGROUPS

from tvm_sparse.scheduling.cuda.library import parameters
from tvm_sparse.scheduling.cuda.linear_tensor.kernels import LIBRARY, PARAMETERS
from tvm_sparse.scheduling.cuda.linear_tensor.tiling import FILTERS, THREADS, LinearTensorTiling

MULTIPLY = f"""
#include <deque>
// A product of a thread, which is still to come, and how many groups it waited for.
struct Product {{ void (*add)(float*, int, const unsigned*, unsigned long long); float* sums; int count;
                 const unsigned* a; unsigned long long b; bool ends_group; }};
static std::deque<Product> asked[{MAX_THREADS} * {MAX_CLUSTER}];
static unsigned held[{MAX_THREADS} * {MAX_CLUSTER}][4];
template <typename Term>
static void add(float* sums, int count, const unsigned* a, Term term) {{
  const int lanes = current / 32 * 32, lane = current % 32;
  memcpy(held[current], a, 16);
  meet(agreed, lanes, lanes + 32);
  for (int i = 0; i < count; i++)
    for (int k = 0; k < 8; k++) {{
      const unsigned own = held[lanes + lane / 4 * 4 + k % 4][i / 2 % 2 + k / 4 * 2];
      sums[i] += term(own, k, i / 4 * 8 + lane % 4 * 2 + i % 2);
    }}
  meet(agreed, lanes, lanes + 32);
}}
static void add_high(float* sums, int count, const unsigned* a, unsigned long long b) {{
  add(sums, count, a, [&](unsigned own, int k, int column) {{
    return cut(own) * cut(((const unsigned*)at(b, k / 4, column))[k % 4]);
  }});
}}
static void add_low(float* sums, int count, const unsigned* a, unsigned long long b) {{
  add(sums, count, a, [&](unsigned own, int k, int column) {{
    const unsigned other = ((const unsigned*)at(b, k / 4, column))[k % 4];
    return of_bfloat16(own & 0xffff) * of_bfloat16(other & 0xffff) + of_bfloat16(own >> 16) * of_bfloat16(other >> 16);
  }});
}}
template <int N> static void add_product(float (&sums)[N], const unsigned (&a)[4], unsigned long long b) {{
  asked[current].push_back({{add_high, sums, N, a, b, false}});
}}
template <int N> static void add_corrections(float (&sums)[N], const unsigned (&a)[4], unsigned long long b) {{
  asked[current].push_back({{add_low, sums, N, a, b, false}});
}}
static void commit_products() {{ asked[current].back().ends_group = true; }}
template <int LEFT> static void wait_for_products() {{
  auto& own = asked[current];
  int groups = 0;
  for (const Product& each : own) groups += each.ends_group;
  while (groups > LEFT) {{
    const Product each = own.front();
    own.pop_front();
    each.add(each.sums, each.count, each.a, each.b);
    groups -= each.ends_group;
  }}
}}
"""
NEEDED = """
static_assert(Role::THREADS == {threads});
extern "C" int needed_bytes(int filters) {{
  const int all[][2] = {{{needed}}};
  for (auto& each : all)
    if (each[0] == filters) return each[1];
  return 0;
}}
"""
KERNELS = [(filters, dense) for filters in FILTERS for dense in (False, True)]


@cache
def _library() -> ctypes.CDLL:
    needed = ", ".join(f"{{{filters}, Block<{filters}>::TABLE_AT}}" for filters in FILTERS)
    return compiled(WARPGROUPS + MULTIPLY, LIBRARY, NEEDED.format(threads=THREADS, needed=needed))


def table_bytes(filters: int) -> int:
    """Where in shared memory the kernel for so many filters has what begins where, behind all else."""
    return int(_library().needed_bytes(filters))


def run(tiling: LinearTensorTiling, weights: np.ndarray, arguments: dict[str, np.ndarray]) -> np.ndarray:
    """The output of a tiling's kernel; elements that it does not write are NaN."""
    assert tiling.parts <= MAX_CLUSTER and tiling.shared_bytes <= SHARED
    integers = parameters.arguments(PARAMETERS, tiling)
    launch = (*tiling.grid, THREADS, tiling.parts)
    return launched(_library(), LIBRARY, tiling.kernel, tiling.spec, weights, arguments, integers, *launch)
