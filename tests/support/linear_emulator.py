"""Run the kernels of codegen/cuda/linear.cu on the CPU: compiled as C++, with their primitives as plain code."""

import ctypes
from functools import cache

import numpy as np
from cuda_emulator import MAX_CLUSTER, PRELUDE, SHARED
from data_emulator import MEETING, PRIMITIVES, compiled, passed

from tvm_sparse.codegen.cuda import kernel_library
from tvm_sparse.scheduling.cuda.library.kernel_numbers import WARP
from tvm_sparse.scheduling.cuda.linear.tiling import LANE_IMAGES, LIBRARIES, WARPS, LinearTiling, geometry

LAUNCH = """
#undef blockIdx
static const Element *x_, *bias_, *residual_; static const int4* weights_; static Element* y_;
static int stride_; static const int* g_;
typedef void (*Kernel)();
template <int P, int V> static void body() {{
  Geometry g; memcpy(&g, g_, sizeof g);
  linear<P, V>(g, stride_, x_, weights_, bias_, residual_, y_);
  part_ways();
}}
static Kernel kernels[] = {{{kernels}}};
extern "C" void launch(const Element* x, const int4* weights, const Element* bias, const Element* residual, Element* y,
                       int stride, const int* g, int fields, int kernel, int k, int images, int parts, int threads) {{
  if (fields * sizeof(int) != sizeof(Geometry)) abort();
  x_ = x, weights_ = weights, bias_ = bias, residual_ = residual, y_ = y, stride_ = stride, g_ = g;
  blockDim.x = threads;
  int grid[] = {{k, images, parts}}, block[] = {{threads, 1, 1}};
  run_grid(kernels[kernel], grid, block, parts);
}}
"""
KERNELS = [(p, v) for v, some in LANE_IMAGES.items() for p in some]


@cache
def _library(dtype: str) -> ctypes.CDLL:
    name = LIBRARIES[dtype]
    launch = LAUNCH.format(kernels=", ".join(f"body<{p}, {v}>" for p, v in KERNELS))
    defined = "".join(f"#define {each}\n" for each in kernel_library.LIBRARIES[name].defined)
    return compiled(defined + PRELUDE + PRIMITIVES + MEETING + kernel_library.source(name) + launch)


def run(tiling: LinearTiling, weights: np.ndarray, arguments: dict[str, np.ndarray]) -> np.ndarray:
    """The output of a tiling's kernel; elements that it does not write are NaN."""
    spec, (parts, k, images) = tiling.spec, tiling.grid
    assert parts <= MAX_CLUSTER and tiling.shared_bytes <= SHARED
    fields = geometry(tiling)
    y, pointers = passed(spec, weights, arguments, fields)
    kernel = KERNELS.index((tiling.lane_images, tiling.shared))
    numbers = (len(fields), kernel, k, images, parts, WARP * WARPS)
    _library(spec.dtype).launch(*pointers[:5], weights.shape[1], pointers[5], *numbers)
    return y
