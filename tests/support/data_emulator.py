"""Run the kernels of codegen/cuda/data.cu on the CPU: compiled as C++, with their primitives as plain code."""

import ctypes
from collections.abc import Sequence
from functools import cache

import native_library
import numpy as np
from cuda_emulator import MAX_CLUSTER, MAX_THREADS, PRELUDE, SHARED

from tvm_sparse.codegen.cuda import kernel_library
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.cuda.data.kernels import PARAMETERS, SINGLE, VECTORS
from tvm_sparse.scheduling.cuda.data.tiling import Tiling, kernel_name
from tvm_sparse.scheduling.cuda.library import parameters
from tvm_sparse.scheduling.cuda.library.kernel_library import WARP, KernelLibrary

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
#define TVM_SPARSE_EMULATED
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
static unsigned as_half(float first, float second) {{ return to_half(first) | (unsigned)to_half(second) << 16; }}
static float2 of_halves(unsigned both) {{ return make_float2(from_half(both), from_half(both >> 16)); }}
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
template <int COUNT> static void give_registers() {{}}
template <int COUNT> static void take_registers() {{}}
static float remote_load(const float* pointer, int other) {{ return tvm_sparse_cluster_load(pointer, other, 0); }}
#define SHARED_MEMORY float* shared = (float*)shared_memory[rank]
#define KERNEL(...)
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
# Of each kernel the function that it calls.
LAUNCH = """
#undef blockIdx
static const Element *x_, *bias_, *residual_; static const int4* weights_; static Element* y_; static const int* g_;
typedef void Function(const Geometry&, const Element*, const int4*, const Element*, const Element*, Element*);
template <Function* FUNCTION> static void body() {{
  Geometry g; memcpy(&g, g_, sizeof g);
  FUNCTION(g, x_, weights_, bias_, residual_, y_);
  part_ways();
}}
static void (*kernels[])() = {{{kernels}}};
extern "C" void launch(const Element* x, const int4* weights, const Element* bias, const Element* residual, Element* y,
                       const int* g, int integers, int kernel, int grid_x, int grid_y, int grid_z, int threads,
                       int cluster) {{
  if (integers * sizeof(int) != sizeof(Geometry)) abort();
  x_ = x, weights_ = weights, bias_ = bias, residual_ = residual, y_ = y, g_ = g;
  blockDim.x = threads;
  int grid[] = {{grid_y, grid_z, grid_x}}, block[] = {{threads, 1, 1}};
  run_grid(kernels[kernel], grid, block, cluster);
}}
"""


def compiled(emulated: str, library: KernelLibrary, more: str = "") -> ctypes.CDLL:
    """The kernels of a library, `emulated` being what they need of a GPU beside what all do."""
    defined = "".join(f"#define {each}\n" for each in library.defined)
    launch = LAUNCH.format(kernels=", ".join(f"body<{each.function}>" for each in library.kernels))
    source = defined + PRELUDE + PRIMITIVES + MEETING + emulated + kernel_library.source(library)
    source += "using namespace tvm_sparse;\n" + more + launch
    # Compiled in half the time of -O1; what tests run takes little longer.
    flags = ("-Og", "-std=c++17", "-ffp-contract=off")
    return ctypes.CDLL(str(native_library.build(source, *flags)))


def launched(
    compiled: ctypes.CDLL,
    library: KernelLibrary,
    kernel: str,
    spec: ConvSpec,
    weights: np.ndarray,
    arguments: dict[str, np.ndarray],
    integers: Sequence[int],
    *launch: int,
    shape: tuple[int, ...] = (),
) -> np.ndarray:
    """The output of a kernel, of its convolution's or a given shape; elements that it does not write are NaN.

    The launch is the grid along x, y and z, threads of a block and blocks of a cluster.
    """
    y = np.full(shape or spec.output_shape, np.nan, spec.dtype)
    tensors = [arguments["x"], weights, *(arguments.get(name, arguments["x"]) for name in ("bias", "residual")), y]
    assert all(each.flags.c_contiguous and each.ctypes.data % 16 == 0 for each in tensors)
    # The pointers keep the arrays.
    pointers = [each.ctypes.data_as(ctypes.c_void_p) for each in (*tensors, np.array(integers, np.int32))]
    compiled.launch(*pointers, len(integers), library.names.index(kernel), *launch)
    return y


@cache
def _compiled(library: KernelLibrary) -> ctypes.CDLL:
    return compiled("", library)


def run(tiling: Tiling, weights: np.ndarray, arguments: dict[str, np.ndarray]) -> np.ndarray:
    """The output of a tiling's kernel; elements that it does not write are NaN."""
    threads, stride = WARP * tiling.warps, weights.shape[1]
    assert threads <= MAX_THREADS and tiling.parts <= MAX_CLUSTER and tiling.shared_bytes(stride) <= SHARED
    integers = parameters.arguments(PARAMETERS, tiling, stride=stride)
    # Copies of kernels differ by their names.
    library = (VECTORS if tiling.shared > 1 else SINGLE)[tiling.spec.dtype]
    kernel = kernel_name(tiling.shared, tiling.lane_pixels, tiling.step, tiling.spec.dtype)
    launch = (*tiling.grid, threads, tiling.parts)
    return launched(_compiled(library), library, kernel, tiling.spec, weights, arguments, integers, *launch)
