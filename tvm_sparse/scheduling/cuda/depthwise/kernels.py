"""The kernels of codegen/cuda/depthwise.cu: what they are called with, and the libraries that hold them."""

import math

import numpy as np

from tvm_sparse.scheduling.cuda.depthwise.tiling import COLUMNS, DepthwiseTiling, kernel_name
from tvm_sparse.scheduling.cuda.library.kernel_library import DEFINED, OF_TYPE, CppKernel, KernelLibrary
from tvm_sparse.scheduling.cuda.library.parameters import EPILOGUE, Parameter
from tvm_sparse.scheduling.family import HALF_VARIANTS

PARAMETERS: tuple[Parameter[DepthwiseTiling], ...] = (
    Parameter("groups", "Of 8 channels.", divides=True),
    Parameter("parts", "Threads that share a row of pixels.", divides=True),
    Parameter("out_h", "Rows of a map of outputs.", lambda t: t.spec.out_h, divides=True),
    Parameter("out_w", "Columns of a map of outputs.", lambda t: t.spec.out_w),
    Parameter("images channels", "Of the input.", lambda t: (t.spec.n, t.spec.c)),
    Parameter("in_h in_w", "Size of an input map.", lambda t: (t.spec.h, t.spec.w)),
    Parameter("pad_h pad_w", "Rows above and columns before the input.", lambda t: t.spec.padding[:2]),
    Parameter("nhwc", "Whether channels lie side by side.", lambda t: int(t.nhwc)),
    Parameter("is_clipped", "Whether there is a largest input.", lambda t: int(math.isfinite(t.most))),
    Parameter("most", "Bits of the largest input.", lambda t: int(np.float32(t.most).view(np.int32))),
    EPILOGUE,
)

# By the type of tensors.
LIBRARIES = {
    dtype: KernelLibrary.of(
        f"depthwise{OF_TYPE[dtype]}",
        "depthwise.cu",
        (
            CppKernel(kernel_name(size, stride, each, dtype), f"convolution<{size}, {stride}, {each}>")
            for (size, stride), columns in COLUMNS.items()
            for each in columns
        ),
        PARAMETERS,
        defined=DEFINED[dtype],
    )
    for dtype in HALF_VARIANTS
}
