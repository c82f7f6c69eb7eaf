"""The kernels of codegen/cuda/linear_tensor.cu: what they are called with, and the library that holds them."""

from tvm_sparse.scheduling.cuda.library.kernel_library import CppKernel, KernelLibrary
from tvm_sparse.scheduling.cuda.library.parameters import EPILOGUE, Parameter
from tvm_sparse.scheduling.cuda.linear_tensor.tiling import FILTERS, ROWS, LinearTensorTiling, kernel_name

PARAMETERS: tuple[Parameter[LinearTensorTiling], ...] = (
    Parameter("batch", "Images.", lambda t: t.spec.n),
    Parameter("groups", "Groups of 64 images of a block.", lambda t: t.images // ROWS),
    Parameter("inputs outputs", "Of an image.", lambda t: (t.spec.c, t.spec.k)),
    Parameter("vector", "Inputs of a read: 4, or 1.", lambda t: 4 if t.spec.c % 4 == 0 else 1),
    Parameter("tiles", "Of filters."),
    Parameter("k_blocks", "Of all inputs."),
    Parameter("parts", "Blocks that share a tile's inputs."),
    EPILOGUE,
)

LIBRARY = KernelLibrary.of(
    "linear_tensor",
    "linear_tensor.cu",
    (
        CppKernel(kernel_name(filters, dense), f"linear<{filters}, {str(dense).lower()}>")
        for filters in FILTERS
        for dense in (False, True)
    ),
    PARAMETERS,
    has_warpgroups=True,
)
