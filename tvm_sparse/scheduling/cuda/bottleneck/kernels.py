"""The kernel of codegen/cuda/bottleneck.cu: what it is called with, and the libraries that hold it."""

from tvm_sparse.conv.dtypes import HALVES
from tvm_sparse.scheduling.cuda.bottleneck.bottleneck import Bottleneck
from tvm_sparse.scheduling.cuda.library.kernel_library import DEFINED, OF_TYPE, CppKernel, KernelLibrary
from tvm_sparse.scheduling.cuda.library.parameters import Parameter

KERNEL = "tvm_sparse_bottleneck{}"

PARAMETERS: tuple[Parameter[Bottleneck], ...] = (
    Parameter("height width", "Of a map.", lambda b: (b.first.h, b.first.w)),
    Parameter("across", "Strips beside each other in an image.", divides=True),
    Parameter("strips", "Of all images."),
    Parameter("steps", "Of a strip."),
    Parameter("blocks", "That share the strips."),
)

# By the type of tensors.
LIBRARIES = {
    dtype: KernelLibrary.of(
        f"bottleneck{OF_TYPE[dtype]}",
        "bottleneck.cu",
        (CppKernel(KERNEL.format(OF_TYPE[dtype]), "bottleneck"),),
        PARAMETERS,
        defined=DEFINED[dtype],
        has_warpgroups=True,
    )
    for dtype in HALVES
}
