"""The kernels of codegen/cuda/plane.cu: what they are called with, and the libraries that hold them."""

from tvm_sparse.scheduling.cuda.library.kernel_library import DEFINED, OF_TYPE, CppKernel, KernelLibrary
from tvm_sparse.scheduling.cuda.library.parameters import EPILOGUE, Parameter
from tvm_sparse.scheduling.cuda.plane.tiling import CHANNEL, PIXELS, TAP, PlaneTiling, kernel_name

PARAMETERS: tuple[Parameter[PlaneTiling], ...] = (
    Parameter("stride", "16-byte units from the weights of one tile of filters to the next one's."),
    Parameter("k_tiles", "Tiles of filters.", divides=True),
    Parameter("tiles", "Tiles of pixels."),
    Parameter("workers", "Blocks that share the tiles of 64 filters."),
    Parameter("image_places pitch", "Places of an image, and of a row, in the line.", divides=True),
    Parameter("staged", "Places of a plane that a tile needs."),
    Parameter("copies", "Reads of a plane.", lambda t: t.staged // t.read_together),
    Parameter("vector", "Neighbouring pixels that are written together."),
    Parameter("slot_groups", "Groups of 8 planes that a slot has room for.", lambda t: t.groups),
    Parameter("shared_units", "16-byte units of a block's shared memory."),
    Parameter("batch", "Images.", lambda t: t.spec.n),
    Parameter("out_h", "Rows of an output map.", lambda t: t.spec.out_h),
    Parameter("out_w", "Elements of its row.", lambda t: t.spec.out_w, divides=True),
    Parameter("out_map", "Elements of an output map.", lambda t: t.spec.out_h * t.spec.out_w, divides=True),
    Parameter("out_image", "Elements of an output image.", lambda t: t.spec.k * t.spec.out_h * t.spec.out_w),
    Parameter("in_h in_w", "Size of an input map.", lambda t: (t.spec.h, t.spec.w)),
    Parameter("image", "Elements of an input image.", lambda t: t.spec.c * t.spec.h * t.spec.w),
    Parameter("stride_h stride_w", "Input rows and columns between neighbouring pixels.", lambda t: t.spec.stride),
    Parameter("pad_h", "Rows above the input.", lambda t: t.spec.padding[0]),
    Parameter("lead", "Zeros before a row."),
    Parameter("r s", "Taps of a filter, below and beside each other.", lambda t: (t.spec.r, t.spec.s)),
    Parameter("dilation_h dilation_w", "Input rows and columns between neighbouring taps.", lambda t: t.spec.dilation),
    Parameter(
        "own_rows own_columns",
        "Whether each row, and column, of taps has planes of its own.",
        lambda t: (int(t.plane != CHANNEL), int(t.plane == TAP)),
    ),
    Parameter("first_column", "Places from a pixel to what its first column of taps reads."),
    EPILOGUE,
)

# By the type of tensors.
LIBRARIES = {
    dtype: KernelLibrary.of(
        f"plane{end}",
        "plane.cu",
        (CppKernel(kernel_name(pixels, dtype), f"convolution<{pixels}>") for pixels in PIXELS[dtype]),
        PARAMETERS,
        defined=DEFINED[dtype],
        has_warpgroups=True,
    )
    for dtype, end in OF_TYPE.items()
}
