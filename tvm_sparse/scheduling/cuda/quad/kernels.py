"""The kernels of codegen/cuda/quad.cu: what they are called with, and the library that holds them."""

import math

from tvm_sparse.scheduling.cuda.library.kernel_library import CppKernel, KernelLibrary
from tvm_sparse.scheduling.cuda.library.parameters import EPILOGUE, Parameter
from tvm_sparse.scheduling.cuda.multiplied import DEFINED_FOR, OF_MULTIPLIED
from tvm_sparse.scheduling.cuda.quad.tiling import PIXELS, QuadTiling, kernel_name


def _elements(tiling: QuadTiling) -> tuple[int, int]:
    image = math.prod(tiling.spec.input_shape[1:])
    return image, image // tiling.spec.groups


PARAMETERS: tuple[Parameter[QuadTiling], ...] = (
    Parameter("tile_rows", "Rows of a tile's weights: its k-blocks, and one ahead of them."),
    Parameter("stride", "16-byte units from one row of weights to the next."),
    Parameter("parts", "Blocks that share a tile's k-blocks.", divides=True),
    Parameter("k_tiles group_tiles", "Tiles of filters, in all and of a group.", divides=True),
    Parameter("group_filters", "Filters of a group."),
    Parameter("pixels", "Output pixels of all images.", lambda t: t.spec.pixels),
    Parameter("out_map", "Elements of an output map.", lambda t: t.spec.out_h * t.spec.out_w, divides=True),
    Parameter("out_w", "Elements of its row.", lambda t: t.spec.out_w, divides=True),
    Parameter("out_image", "Elements of an output image.", lambda t: t.spec.k * t.spec.out_h * t.spec.out_w),
    Parameter("in_h in_w", "Size of an input map.", lambda t: (t.spec.h, t.spec.w)),
    Parameter("image group_elements", "Input elements of an image, and of a group's channels.", _elements),
    Parameter("outputs", "Output images of a volume.", lambda t: t.volumes.outputs, divides=True),
    Parameter("in_d", "Maps of its input.", lambda t: t.volumes.size),
    Parameter("t", "Taps of a filter behind each other.", lambda t: t.volumes.taps),
    Parameter(
        "stride_d pad_d dilation_d",
        "Input maps between neighbouring images, before the input, and between neighbouring taps.",
        lambda t: (t.volumes.stride, t.volumes.before, t.volumes.dilation),
    ),
    Parameter("r s", "Taps of a filter, below and beside each other.", lambda t: (t.spec.r, t.spec.s)),
    Parameter("stride_h stride_w", "Input rows and columns between neighbouring pixels.", lambda t: t.spec.stride),
    Parameter("pad_h pad_w", "Rows above and columns before the input.", lambda t: t.spec.padding[:2]),
    Parameter("dilation_h dilation_w", "Input rows and columns between neighbouring taps.", lambda t: t.spec.dilation),
    EPILOGUE,
)

# By what is multiplied.
LIBRARIES = {
    multiplied: KernelLibrary.of(
        f"quad{end}",
        "quad.cu",
        (
            CppKernel(kernel_name(m_tiles, pixels, multiplied), f"convolution<{m_tiles}, {pixels}>")
            for m_tiles, some in PIXELS[multiplied].items()
            for pixels in some
        ),
        PARAMETERS,
        defined=DEFINED_FOR[multiplied],
        has_warpgroups=True,
    )
    for multiplied, end in OF_MULTIPLIED.items()
}
