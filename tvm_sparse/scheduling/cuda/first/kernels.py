"""The kernels of codegen/cuda/first.cu: what they are called with, and the libraries that hold them."""

import math

from tvm_sparse.scheduling.cuda.first.tiling import KERNELS, FirstTiling, kernel_name
from tvm_sparse.scheduling.cuda.library.kernel_library import DEFINED, OF_TYPE, CppKernel, KernelLibrary
from tvm_sparse.scheduling.cuda.library.parameters import EPILOGUE, Parameter
from tvm_sparse.scheduling.family import HALF_VARIANTS

PARAMETERS: tuple[Parameter[FirstTiling], ...] = (
    Parameter("blocks", "That have tiles, one after the other."),
    Parameter("tiles", "Of all images.", lambda t: math.prod(t.tiles)),
    Parameter("tiles_y tiles_x", "Tiles below and beside each other.", lambda t: t.tiles[1:], divides=True),
    Parameter("rows", "Of a tile of outputs."),
    Parameter("columns", "Of a tile of outputs.", divides=True),
    Parameter("out_pixels", "Of a tile of outputs.", lambda t: t.rows * t.columns, divides=True),
    Parameter("conv_rows", "Of a tile of the convolution's outputs.", lambda t: t.conv_size[0]),
    Parameter("conv_columns", "Of a tile of the convolution's outputs.", lambda t: t.conv_size[1], divides=True),
    Parameter("pixels", "Of a tile of the convolution's outputs.", lambda t: math.prod(t.conv_size)),
    Parameter("in_rows in_columns", "Of a tile's input.", lambda t: t.in_size),
    Parameter("staged", "Pixels of a tile's input.", lambda t: math.prod(t.in_size)),
    Parameter("filter_warps", "Warps of a block that have other filters.", divides=True),
    Parameter("pixel_warps", "Warps of a block that have other pixels."),
    Parameter("groups", "Of 8 filters of a block.", divides=True),
    Parameter("pitch", "Elements from one pixel's sums to the next one's."),
    Parameter("filters channels", "Of the convolution.", lambda t: (t.spec.k, t.spec.c)),
    Parameter("taps", "Of a channel.", lambda t: t.spec.r * t.spec.s),
    Parameter("taps_w", "Of a row.", lambda t: t.spec.s, divides=True),
    Parameter("stride_h stride_w", "Input rows and columns between pixels.", lambda t: t.spec.stride),
    Parameter("dilation_h dilation_w", "Input rows and columns between taps.", lambda t: t.spec.dilation),
    Parameter("pad_h pad_w", "Rows above and columns before the input.", lambda t: t.spec.padding[:2]),
    Parameter("in_h in_w", "Size of an input map.", lambda t: (t.spec.h, t.spec.w)),
    Parameter("in_map", "Elements of an input map.", lambda t: t.spec.h * t.spec.w),
    Parameter("conv_h conv_w", "Size of a map of the convolution's outputs.", lambda t: t.spec.output_shape[2:]),
    Parameter("out_h out_w", "Size of a map of outputs.", lambda t: t.out_size),
    Parameter("window", "Rows and columns of the pool's windows.", lambda t: t.pool.window),
    Parameter("pool_stride pool_pad", "Of the pool.", lambda t: (t.pool.stride, t.pool.padding)),
    Parameter("nhwc", "Whether outputs are written in NHWC.", lambda t: int(t.nhwc)),
    EPILOGUE,
)

# By the type of tensors.
LIBRARIES = {
    dtype: KernelLibrary.of(
        f"first{OF_TYPE[dtype]}",
        "first.cu",
        (
            CppKernel(kernel_name(steps, dtype), f"convolution<{steps}, {m_tiles}>", blocks)
            for steps, (m_tiles, blocks) in KERNELS.items()
        ),
        PARAMETERS,
        defined=DEFINED[dtype],
    )
    for dtype in HALF_VARIANTS
}
