"""The kernels of codegen/cuda/data.cu: what they are called with, and the libraries that hold them.

They are the same for every shape and tiling; their parameters tell them both.
"""

from dataclasses import replace

from tvm_sparse.scheduling.cuda.data.tiling import MAX_LANE_PIXELS, PREFIX, Staging, Tiling, kernel_name
from tvm_sparse.scheduling.cuda.library.kernel_library import DEFINED, OF_TYPE, CppKernel, KernelLibrary
from tvm_sparse.scheduling.cuda.library.library_call import NUMBER_OF_COPIES
from tvm_sparse.scheduling.cuda.library.map_size import is_grouped
from tvm_sparse.scheduling.cuda.library.parameters import EPILOGUE, Parameter


def _vectors(tiling: Tiling) -> tuple[int, int, int]:
    """Copies of a block, of a channel, and of a row."""
    if tiling.staging is Staging.RUN:
        return tiling.part_channels * tiling.channel_pitch // 4, 1, 1
    if tiling.staging is Staging.PLANES:
        per_row, per_channel = 1, tiling.channel_pitch // tiling.vector
    else:
        per_row = (tiling.columns if tiling.is_pointwise else tiling.spec.w) // tiling.vector
        per_channel = tiling.planes[0] * tiling.plane_rows * per_row
    return tiling.part_channels * per_channel, per_channel, per_row


def _zero_rows(tiling: Tiling) -> int:
    return tiling.part_channels * tiling.planes[0] * tiling.plane_rows + 1 if tiling.lead else 0


def _elements(tiling: Tiling) -> tuple[int, ...]:
    spec, (height, width) = tiling.spec, tiling.in_size
    return tuple(each * height * width for each in (1, spec.c, tiling.part_channels, spec.c // spec.groups))


PARAMETERS: tuple[Parameter[Tiling], ...] = (
    Parameter("stride", "16-byte units from one block's weights to the next one's."),
    Parameter("rows columns", "Pixels of a tile."),
    Parameter("filters parts", "Filters of a block, and blocks that share their channels."),
    Parameter("pixel_groups", "Into which warps divide a filter's pixels.", divides=True),
    Parameter("filters_at_once", "Filters that warps have at a time.", lambda t: t.warps // t.pixel_groups),
    Parameter("pitch", "Pixels from one row of a tile to the next.", divides=True),
    Parameter("tiles_x tiles_y", "Tiles beside and below each other.", lambda t: t.tiles[::-1], divides=True),
    Parameter("quads", "Of four pixels of a filter.", lambda t: t.places // 4, divides=True),
    Parameter("k_tiles", "Tiles of a group's filters.", lambda t: t.spec.k // t.spec.groups // t.filters, divides=True),
    Parameter("out_h out_w", "Size of an output map.", lambda t: t.out_size),
    Parameter("out_map", "Elements of an output map.", lambda t: t.spec.out_h * t.spec.out_w),
    Parameter("out_image", "Elements of an output image.", lambda t: t.spec.k * t.spec.out_h * t.spec.out_w),
    Parameter("in_h in_w", "Size of an input map.", lambda t: t.in_size),
    Parameter(
        "channel image part_elements group_elements",
        "Input elements of a channel, an image, a part's channels and a group's.",
        _elements,
    ),
    Parameter(
        "stride_h stride_w",
        "Input rows and columns between neighbouring pixels.",
        lambda t: (1, 1) if t.is_pointwise else t.spec.stride,
    ),
    Parameter("pad_h pad_w", "Rows above and columns before the input.", lambda t: t.spec.padding[:2]),
    Parameter("mode", "How the input is staged: `Staging`.", lambda t: int(t.staging)),
    Parameter("vector", "Elements of a copy."),
    Parameter("vectors", "Copies of a block.", lambda t: _vectors(t)[0]),
    Parameter("per_channel per_row", "Copies of a channel and of a row.", lambda t: _vectors(t)[1:], divides=True),
    Parameter("plane_rows", "Rows of a plane.", divides=True),
    Parameter("planes_w", "Planes beside each other.", lambda t: t.planes[1], divides=True),
    Parameter("plane", "Floats of a plane.", lambda t: t.plane_rows * t.row_pitch, divides=True),
    Parameter("row_pitch channel_pitch", "Floats from one staged row, and channel, to the next."),
    Parameter("lead", "Zeros before a staged row."),
    Parameter("input_floats", "Shared memory of the input, in floats."),
    Parameter("zero_rows", "Staged rows that begin with zeros.", _zero_rows),
    Parameter("first_pair", "Where pairs begin among a block's weights, in 16-byte units."),
    EPILOGUE,
)


def _library(name: str, are_vectors: bool, dtype: str, *defined: str) -> KernelLibrary:
    kernels = (
        CppKernel(kernel_name(shared, pixels + 1, step, dtype), f"convolution<{pixels + 1}, {step}, {shared}>")
        for shared, most in MAX_LANE_PIXELS.items()
        if (shared > 1) is are_vectors
        for pixels in range(most)
        for step in (1, 2)
    )
    defined += DEFINED[dtype]
    return KernelLibrary.of(f"{name}{OF_TYPE[dtype]}", "data.cu", kernels, PARAMETERS, defined=defined)


# Of kernels for one filter at a time, and for several, by the type of tensors.
SINGLE = {dtype: _library("data", False, dtype) for dtype in OF_TYPE}
VECTORS = {dtype: _library("vector", True, dtype, "TVM_SPARSE_VECTORS") for dtype in OF_TYPE}


def library_of(tiling: Tiling) -> KernelLibrary:
    """The library that holds the kernel of a tiling; in copies where blocks may share a multiprocessor."""
    library = (VECTORS if tiling.shared > 1 else SINGLE)[tiling.spec.dtype]
    if not is_grouped(tiling.spec):
        return library
    copies = tuple(PREFIX.format(each) for each in range(NUMBER_OF_COPIES))
    kernels = (each._replace(name=each.name.replace(PREFIX.format(""), copies[0])) for each in library.kernels)
    return replace(library, kernels=tuple(kernels), copies=copies)
