"""Run the kernels of codegen/cuda/slice.cu on the CPU: `mma` as plain code, between the threads of a warp."""

import ctypes
from functools import cache

import numpy as np
from cuda_emulator import MAX_THREADS, PRELUDE, SHARED
from data_emulator import MEETING, PRIMITIVES, compiled, passed

from tvm_sparse.codegen.cuda import kernel_library
from tvm_sparse.scheduling.cuda.library.kernel_numbers import WARP
from tvm_sparse.scheduling.cuda.slice.geometry import geometry
from tvm_sparse.scheduling.cuda.slice.tiling import LIBRARIES, N_TILES, SliceTiling

MULTIPLY = f"""
#define TVM_SPARSE_TENSOR_PRIMITIVES
#undef KERNEL
#define KERNEL(M, NW) static void
static unsigned held[{MAX_THREADS}][6];
static float of_neighbour(float value) {{
  const int lanes = current / 32 * 32;
  memcpy(held[current], &value, 4);
  meet(agreed, lanes, lanes + 32);
  const float found = BITS_AS_FLOAT(held[current ^ 1][0]);
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
LAUNCH = """
#undef blockIdx
static const Element *x_, *bias_, *residual_; static const int4* weights_; static Element* y_;
static int chunks_, stride_; static const int* g_;
typedef void (*Kernel)();
template <int M, int NW> static void body() {{
  Geometry g; memcpy(&g, g_, sizeof g);
  convolution<M, NW>(g, chunks_, stride_, x_, weights_, bias_, residual_, y_);
  part_ways();
}}
static Kernel kernels[] = {{{kernels}}};
extern "C" void launch(const Element* x, const int4* weights, const Element* bias, const Element* residual, Element* y,
                       int chunks, int stride, const int* g, int fields, int kernel, int blocks, int threads,
                       int parts) {{
  if (fields * sizeof(int) != sizeof(Geometry)) abort();
  x_ = x, weights_ = weights, bias_ = bias, residual_ = residual, y_ = y, chunks_ = chunks, stride_ = stride, g_ = g;
  blockDim.x = threads;
  int grid[] = {{1, 1, blocks}}, block[] = {{threads, 1, 1}};
  run_grid(kernels[kernel], grid, block, parts);
}}
"""
KERNELS = [(m, n) for m, some in N_TILES.items() for n in some]


@cache
def _library(dtype: str) -> ctypes.CDLL:
    name = LIBRARIES[dtype]
    launch = LAUNCH.format(kernels=", ".join(f"body<{m}, {n}>" for m, n in KERNELS))
    defined = "".join(f"#define {each}\n" for each in kernel_library.LIBRARIES[name].defined)
    return compiled(defined + PRELUDE + PRIMITIVES + MEETING + MULTIPLY + kernel_library.source(name) + launch)


def run(tiling: SliceTiling, weights: np.ndarray, arguments: dict[str, np.ndarray]) -> np.ndarray:
    """The output of a tiling's kernel; elements that it does not write are NaN."""
    spec, chunks = tiling.spec, len(weights) // tiling.k_tiles
    assert tiling.shared_bytes(chunks, weights.shape[1]) <= SHARED
    fields = geometry(tiling)
    y, pointers = passed(spec, weights, arguments, fields)
    kernel = KERNELS.index((tiling.m_tiles, tiling.n_tiles))
    numbers = (len(fields), kernel, tiling.blocks, WARP * tiling.warps, 1)
    _library(spec.dtype).launch(*pointers[:5], chunks, weights.shape[1], pointers[5], *numbers)
    return y
