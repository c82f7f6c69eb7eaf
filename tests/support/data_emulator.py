"""Run the kernels of codegen/cuda/data.cu on the CPU: compiled as C++, with their primitives as plain code."""

import ctypes
from collections.abc import Sequence
from functools import cache

import native_library
import numpy as np
from cuda_emulator import MAX_CLUSTER, MAX_THREADS, PRELUDE, SHARED

from tvm_sparse.codegen.cuda import kernel_library
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.cuda.data.geometry import geometry
from tvm_sparse.scheduling.cuda.data.tiling import MAX_LANE_PIXELS, Tiling, library_of
from tvm_sparse.scheduling.cuda.library.kernel_numbers import WARP

# The emulator's clusters lie along z, the kernels' along x.
PRIMITIVES = f"""
#include <math.h>
#ifdef TVM_SPARSE_BFLOAT16
typedef nv_bfloat16 Element;
#elif defined(TVM_SPARSE_HALF)
typedef half Element;
#else
typedef float Element;
#endif
static float widened(Element value) {{ return value; }}
static Element narrowed(float value) {{ return Element(value); }}
#define TVM_SPARSE_DATA_PRIMITIVES
static struct {{ int x; }} blockDim;
struct Blocks {{ int x, y, z; }};
#define __umulhi(a, b) (unsigned)(((unsigned long)(unsigned)(a) * (unsigned)(b)) >> 32)
static float BITS_AS_FLOAT(int bits) {{ float value; memcpy(&value, &bits, 4); return value; }}
static unsigned FLOAT_AS_BITS(float value) {{ unsigned bits; memcpy(&bits, &value, 4); return bits; }}
// As tensor cores read a number in TF32.
static float cut(unsigned bits) {{ return BITS_AS_FLOAT(bits & 0xffffe000u); }}
static unsigned rounded(float value) {{
  const unsigned bits = FLOAT_AS_BITS(value);
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}}
static unsigned as_bfloat16(float first, float second) {{ return rounded(first) | rounded(second) << 16; }}
static float of_bfloat16(unsigned bits) {{ return BITS_AS_FLOAT(bits << 16); }}
template <int BYTES> static void copy(void* to, const void* from, bool inside) {{
  if (((long)to | (inside ? (long)from : 0)) % BYTES) abort();
  if (inside) memcpy(to, from, BYTES); else memset(to, 0, BYTES);
}}
template <int BYTES> static void read_line(void* to, const void* from) {{
  if ((long)from % BYTES) abort();
  memcpy(to, from, BYTES);
}}
static void commit_copies() {{}}
// How often others have their turn before copies have come.
extern "C" {{ int late_copies = 0; }}
template <int LEFT = 0> static void wait_for_copies() {{ for (int i = 0; i < late_copies; i++) yield(); }}
static void wait_for_kernel() {{}}
static void launch_next() {{}}
static void cluster_arrive() {{ tvm_sparse_cluster_arrive(); }}
static void cluster_wait() {{ tvm_sparse_cluster_wait(); }}
static unsigned remote_address(const void* pointer, int other) {{
  return (const unsigned char*)pointer - (const unsigned char*)shared_memory + (other - rank) * {SHARED};
}}
static void remote_store(unsigned address, float value) {{
  if (address + 4 > sizeof shared_memory) abort();
  *(float*)((unsigned char*)shared_memory + address) = value;
}}
static int computed_anew(int value) {{ return value; }}
#define SHARED_MEMORY float* shared = (float*)shared_memory[rank]
#define KERNEL static void
#define __align__(n) alignas(n)
static Blocks blocks() {{ return {{blockIdx.z, blockIdx.x, blockIdx.y}}; }}
#define blockIdx blocks()
"""
# Where warps take different numbers of steps: a barrier counts who has arrived, not trusting that all stop as often.
MEETING = f"""
#undef __syncthreads
static int met[{MAX_THREADS} * {MAX_CLUSTER}], agreed[{MAX_THREADS} * {MAX_CLUSTER}];
static void meet(int* times, int first, int last) {{
  const int mine = ++times[current];
  for (bool waits = true; waits;) {{
    waits = false;
    for (int i = first; i < last; i++) waits = waits || (times[i] < mine && !finished[i]);
    if (waits) yield();
  }}
}}
#define __syncthreads() meet(met, rank * blockDim.x, (rank + 1) * blockDim.x)
#define __syncwarp() meet(agreed, current / 32 * 32, current / 32 * 32 + 32)
// At a kernel's end, before any thread of the next block comes to a barrier.
static void part_ways() {{
  met[current] = agreed[current] = 0;
  finished[current] = true;
  yield();
}}
"""
LAUNCH = """
#undef blockIdx
static const float *x_, *bias_, *residual_; static const int4* weights_; static float* y_; static int stride_;
static const int* g_;
typedef void (*Kernel)();
template <int P, int STEP, int V> static void body() {{ Geometry g; memcpy(&g, g_, sizeof g);
    convolution<P, STEP, V>(g, stride_, x_, weights_, bias_, residual_, y_); finished[current] = true;
    __syncthreads(); }}
static Kernel kernels[] = {{{kernels}}};
extern "C" void launch(const float* x, const int4* weights, const float* bias, const float* residual, float* y,
                       int stride, const int* g, int fields, int kernel, int k, int tiles, int parts, int threads) {{
  if (fields * sizeof(int) != sizeof(Geometry)) abort();
  x_ = x, weights_ = weights, bias_ = bias, residual_ = residual, y_ = y, stride_ = stride, g_ = g;
  blockDim.x = threads;
  int grid[] = {{k, tiles, parts}}, block[] = {{threads, 1, 1}};
  run_grid(kernels[kernel], grid, block, parts);
}}
"""


def compiled(source: str) -> ctypes.CDLL:
    """The library of C++ source."""
    # Products run for longer than all else is compiled.
    flags = ("-O1", "-finline-functions", "-std=c++17", "-ffp-contract=off")
    return ctypes.CDLL(str(native_library.build(source, *flags)))


def passed(
    spec: ConvSpec, weights: np.ndarray, arguments: dict[str, np.ndarray], fields: Sequence[int]
) -> tuple[np.ndarray, list[ctypes.c_void_p]]:
    """An output of NaN, and pointers to a kernel's tensors, of which that is the last, and to its geometry."""
    y = np.full(spec.output_shape, np.nan, spec.dtype)
    tensors = [arguments["x"], weights, *(arguments.get(name, arguments["x"]) for name in ("bias", "residual")), y]
    assert all(each.flags.c_contiguous and each.ctypes.data % 16 == 0 for each in tensors)
    # The pointers keep the arrays.
    return y, [each.ctypes.data_as(ctypes.c_void_p) for each in (*tensors, np.array(fields, np.int32))]


@cache
def _library(shared: int) -> ctypes.CDLL:
    """The kernels for so many filters at a time."""
    name = library_of(shared)
    kernels = [f"body<{p + 1}, {step}, {shared}>" for p in range(MAX_LANE_PIXELS[shared]) for step in (1, 2)]
    launch = LAUNCH.format(kernels=", ".join(kernels))
    return compiled(PRELUDE + PRIMITIVES + kernel_library.source(name) + launch)


def run(tiling: Tiling, weights: np.ndarray, arguments: dict[str, np.ndarray]) -> np.ndarray:
    """The output of a tiling's kernel; elements that it does not write are NaN."""
    spec, (parts, k, tiles) = tiling.spec, tiling.grid
    threads = WARP * tiling.warps
    assert threads <= MAX_THREADS and parts <= MAX_CLUSTER and tiling.shared_bytes(weights.shape[1]) <= SHARED
    fields = geometry(tiling)
    y, pointers = passed(spec, weights, arguments, fields)
    kernel = 2 * (tiling.lane_pixels - 1) + tiling.step - 1
    numbers = (weights.shape[1], len(fields), kernel, k, tiles, parts, threads)
    _library(tiling.shared).launch(*pointers[:5], numbers[0], pointers[5], *numbers[1:])
    return y
