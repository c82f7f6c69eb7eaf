"""Run the kernel of codegen/cuda/bottleneck.cu on the CPU: `wgmma` as plain code, between the threads of a warp."""

import ctypes
from functools import cache

import numpy as np
from cuda_emulator import MAX_CLUSTER, MAX_THREADS, SHARED
from data_emulator import compiled, launched
from plane_emulator import MULTIPLY
from warpgroup_emulator import WARPGROUPS

from tvm_sparse.scheduling.cuda.bottleneck.bottleneck import SHARED_BYTES, THREADS, Bottleneck
from tvm_sparse.scheduling.cuda.bottleneck.kernels import LIBRARIES, PARAMETERS
from tvm_sparse.scheduling.cuda.library import parameters

PRIMITIVES = f"""
#include <algorithm>
// A barrier: how many come to it, how many are still to come, and the turn.
struct Meeting {{ short all, left; int turn; }};
static void begin_barrier(unsigned long long* barrier, int arrivals) {{
  *(Meeting*)barrier = {{(short)arrivals, (short)arrivals, 0}};
}}
static void arrive(unsigned long long* barrier) {{
  Meeting& own = *(Meeting*)barrier;
  if (--own.left == 0) own.left = own.all, own.turn++;
}}
static bool is_past(unsigned long long* barrier, int parity) {{ return (((Meeting*)barrier)->turn & 1) != parity; }}
static void wait_at(unsigned long long* barrier, int parity) {{
  while (!is_past(barrier, parity)) yield();
}}
static bool voted[{MAX_THREADS} * {MAX_CLUSTER}];
static bool __all_sync(unsigned, bool mine) {{
  const int lanes = current / 32 * 32;
  voted[current] = mine;
  meet(agreed, lanes, lanes + 32);
  const bool found = std::all_of(voted + lanes, voted + lanes + 32, [](bool each) {{ return each; }});
  meet(agreed, lanes, lanes + 32);
  return found;
}}
template <bool ADDS> static void add_product(float (&sums)[32], unsigned long long a, unsigned long long b) {{
  if (!ADDS) for (float& sum : sums) sum = 0;
  add_product<32>(sums, a, b);
}}
static unsigned held[{MAX_THREADS} * {MAX_CLUSTER}][4];
template <bool ADDS> static void add_product(float (&sums)[32], const unsigned* a, unsigned long long b) {{
  const int lanes = current / 32 * 32, lane = current % 32;
  memcpy(held[current], a, 16);
  meet(agreed, lanes, lanes + 32);
  for (int i = 0; i < 32; i++) {{
    if (!ADDS) sums[i] = 0;
    for (int k = 0; k < 16; k++) {{
      const int column = i / 4 * 8 + lane % 4 * 2 + i % 2;
      const unsigned pair = held[lanes + lane / 4 * 4 + k % 8 / 2][i / 2 % 2 + k / 8 * 2];
      sums[i] += part_of(pair, k % 2) * element(at(b, k / 8, column) + k % 8 * 2);
    }}
  }}
  meet(agreed, lanes, lanes + 32);
}}
static void store_squares(unsigned to, const unsigned* squares) {{
  const int lanes = current / 32 * 32, lane = current % 32;
  memcpy(held[current], squares, 16);
  meet(agreed, lanes, lanes + 32);
  for (int i = 0; i < 4; i++)
    memcpy(shared_memory[rank] + (to & 0xffffff) + 4 * i, &held[lanes + lane % 8 * 4 + i][lane / 8], 4);
  meet(agreed, lanes, lanes + 32);
}}
"""


@cache
def _library(dtype: str) -> ctypes.CDLL:
    return compiled(WARPGROUPS + MULTIPLY + PRIMITIVES, LIBRARIES[dtype])


def run(bottleneck: Bottleneck, weights: np.ndarray, x: np.ndarray, blocks: int, late_copies: int = 0) -> np.ndarray:
    """The output (N, H, W, C) for x of that shape, by so many blocks; elements that are not written are NaN."""
    assert SHARED_BYTES <= SHARED
    integers = parameters.arguments(PARAMETERS, bottleneck, blocks=blocks)
    dtype = bottleneck.first.dtype
    emulated, library = _library(dtype), LIBRARIES[dtype]
    ctypes.c_int.in_dll(emulated, "late_copies").value = late_copies
    launch = (blocks, 1, 1, THREADS, 1)
    spec = bottleneck.third
    found = launched(emulated, library, library.names[0], spec, weights, {"x": x}, integers, *launch)
    return found.reshape(x.shape)
