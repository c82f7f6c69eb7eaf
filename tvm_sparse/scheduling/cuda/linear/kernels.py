"""The kernels of codegen/cuda/linear.cu: what they are called with, and the libraries that hold them."""

from tvm_sparse.scheduling.cuda.library.kernel_library import DEFINED, OF_TYPE, CppKernel, KernelLibrary
from tvm_sparse.scheduling.cuda.library.parameters import EPILOGUE, Parameter
from tvm_sparse.scheduling.cuda.linear.tiling import LANE_IMAGES, LinearTiling, kernel_name

PARAMETERS: tuple[Parameter[LinearTiling], ...] = (
    Parameter("stride", "16-byte units from one warp's weights to the next one's."),
    Parameter("batch", "Images.", lambda t: t.spec.n),
    Parameter("inputs outputs", "Of an image.", lambda t: (t.inputs, t.spec.k)),
    Parameter("parts", "Blocks that share the inputs."),
    Parameter("part_inputs chunks", "Inputs and chunks of a part."),
    Parameter("vector", "Inputs of a read: 4, or 1.", lambda t: 4 if t.inputs % 4 == 0 else 1),
    Parameter("filters", "Of a block."),
    Parameter("own_filters", "Of which a block adds sums up.", lambda t: t.filters // t.parts, divides=True),
    Parameter("rows", "Of a warp in a chunk: filters that it takes together."),
    EPILOGUE,
)

# By the type of tensors.
LIBRARIES = {
    dtype: KernelLibrary.of(
        f"linear{end}",
        "linear.cu",
        (
            CppKernel(kernel_name(images, shared, dtype), f"linear<{images}, {shared}>")
            for shared, some in LANE_IMAGES.items()
            for images in some
        ),
        PARAMETERS,
        defined=DEFINED[dtype],
    )
    for dtype, end in OF_TYPE.items()
}
