"""The kernels of codegen/cuda/slice.cu: what they are called with, and the libraries that hold them."""

from tvm_sparse.scheduling.cuda.library.kernel_library import WARP, CppKernel, KernelLibrary
from tvm_sparse.scheduling.cuda.library.library_call import NUMBER_OF_COPIES
from tvm_sparse.scheduling.cuda.library.parameters import EPILOGUE, Parameter
from tvm_sparse.scheduling.cuda.multiplied import DEFINED_FOR, OF_MULTIPLIED
from tvm_sparse.scheduling.cuda.slice.tiling import COPY, N_TILES, SliceTiling, kernel_name


def _copies(tiling: SliceTiling) -> tuple[int, int, int]:
    """Copies of a staged channel, of an image of it, and of a row."""
    per_row = (tiling.columns if tiling.is_pointwise else tiling.spec.w) // tiling.vector
    per_image = tiling.staged_rows * per_row
    return tiling.images * per_image, per_image, per_row


def _planes(tiling: SliceTiling) -> int:
    return tiling.channels * tiling.images * (tiling.staged_rows + 1) if tiling.lead else 0


def _elements(tiling: SliceTiling) -> tuple[int, ...]:
    spec, (height, width) = tiling.spec, tiling.in_size
    return tuple(each * height * width for each in (1, spec.c, spec.c // spec.groups))


PARAMETERS: tuple[Parameter[SliceTiling], ...] = (
    Parameter("chunks", "Of a tile of filters."),
    Parameter("stride", "16-byte units from one chunk's weights to the next one's."),
    Parameter("filter_warps pixel_warps", "Warps of a block that have other filters, and other pixels.", divides=True),
    Parameter("k_warps", "Warps that divide positions."),
    Parameter("stages", "Buffers of the ring."),
    Parameter("k_tiles", "Tiles of filters.", divides=True),
    Parameter("group_tiles", "Of a group's filters.", lambda t: t.k_tiles // t.spec.groups, divides=True),
    Parameter("tiles_x tiles_y", "Tiles beside and below each other.", lambda t: t.tiles[:0:-1], divides=True),
    Parameter("images rows columns", "Of a tile."),
    Parameter("tiles_8", "Groups of 8 pixels of a tile."),
    Parameter("image_8", "Of an image of a tile.", lambda t: t.rows * t.row_8, divides=True),
    Parameter("row_8", "Of a row of a tile.", divides=True),
    Parameter("batch", "Images.", lambda t: t.spec.n),
    Parameter("out_h out_w", "Size of an output map.", lambda t: t.out_size),
    Parameter("out_map", "Elements of an output map.", lambda t: t.spec.out_h * t.spec.out_w),
    Parameter("out_image", "Elements of an output image.", lambda t: t.spec.k * t.spec.out_h * t.spec.out_w),
    Parameter("aligned", "Each row begins at a multiple of so many pixels, which are written at once."),
    Parameter("in_h in_w", "Size of an input map.", lambda t: t.in_size),
    Parameter(
        "channel image group_elements", "Input elements of a channel, an image and a group's channels.", _elements
    ),
    Parameter(
        "stride_h stride_w",
        "Input rows and columns between neighbouring pixels.",
        lambda t: (1, 1) if t.is_pointwise else t.spec.stride,
    ),
    Parameter("pad_h", "Rows above the input.", lambda t: t.spec.padding[0]),
    Parameter("row_step", "Input rows between staged ones."),
    Parameter("vector", "Elements of a copy."),
    Parameter("per_channel", "Copies of a channel.", lambda t: _copies(t)[0], divides=True),
    Parameter(
        "slots_at_once",
        "Channels that all threads copy at a time.",
        lambda t: max(1, WARP * t.warps // _copies(t)[0]),
    ),
    Parameter("per_image per_row", "Copies of a channel's image and row.", lambda t: _copies(t)[1:], divides=True),
    Parameter("pixel_row", "Elements between the inputs of a pixel and of the one below it."),
    Parameter(
        "row_pitch image_pitch channel_pitch",
        "Elements from one staged row, image of a channel, and channel to the next.",
    ),
    Parameter("lead", "Zeros before a staged row."),
    Parameter("input_elements", "Shared memory of a chunk's input, in elements."),
    Parameter("zero_rows", "Rows of zeros of a channel's image.", lambda t: t.staged_rows + 1, divides=True),
    Parameter("planes", "Rows of zeros of a buffer.", _planes, divides=True),
    Parameter("first_channel filters_at", "Where channels and filters begin among a chunk's weights, in 4 bytes."),
    Parameter("first_step", "Where its k-steps begin, in 16 bytes."),
    EPILOGUE,
)


def _kernel(m_tiles: int, n_tiles: int, multiplied: str) -> CppKernel:
    # Two blocks of 256 threads a multiprocessor, unless their sums alone take most of its registers.
    blocks = 2 if m_tiles * n_tiles <= 16 else 1
    return CppKernel(kernel_name(m_tiles, n_tiles, multiplied), f"convolution<{m_tiles}, {n_tiles}>", blocks)


# By what is multiplied.
LIBRARIES = {
    multiplied: KernelLibrary.of(
        f"slice{end}",
        "slice.cu",
        (_kernel(m_tiles, n_tiles, multiplied) for m_tiles, some in N_TILES.items() for n_tiles in some),
        PARAMETERS,
        defined=DEFINED_FOR[multiplied],
        copies=tuple(COPY.format(each) for each in range(NUMBER_OF_COPIES)),
    )
    for multiplied, end in OF_MULTIPLIED.items()
}
