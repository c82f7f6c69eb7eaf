"""The numbers that a kernel of shared positions is called with (codegen/cuda/slice.cu says what they mean)."""

from typing import NamedTuple

from tvm_sparse.scheduling.cuda.library.kernel_numbers import WARP, divisor, epilogue
from tvm_sparse.scheduling.cuda.slice.tiling import SliceTiling


class Geometry(NamedTuple):
    """The kernel's integer parameters, in its order; their meaning is said there."""

    filter_warps: int
    filter_warps_m: int
    pixel_warps: int
    pixel_warps_m: int
    k_warps: int
    stages: int
    k_tiles: int
    k_tiles_m: int
    group_tiles: int
    group_tiles_m: int
    tiles_x: int
    tiles_x_m: int
    tiles_y: int
    tiles_y_m: int
    images: int
    rows: int
    columns: int
    tiles_8: int
    image_8: int
    image_8_m: int
    row_8: int
    row_8_m: int
    batch: int
    out_h: int
    out_w: int
    out_map: int
    out_image: int
    aligned: int
    in_h: int
    in_w: int
    channel: int
    image: int
    group_elements: int
    stride_h: int
    stride_w: int
    pad_h: int
    row_step: int
    vector: int
    per_channel: int
    per_channel_m: int
    slots_at_once: int
    per_image: int
    per_image_m: int
    per_row: int
    per_row_m: int
    pixel_row: int
    row_pitch: int
    image_pitch: int
    channel_pitch: int
    lead: int
    input_elements: int
    zero_rows: int
    zero_rows_m: int
    planes: int
    planes_m: int
    first_channel: int
    filters_at: int
    first_step: int
    has_bias: int
    has_residual: int
    relu: int
    relu_max: int


def geometry(tiling: SliceTiling) -> Geometry:
    """What the kernel is called with."""
    spec, (in_h, in_w), (out_h, out_w) = tiling.spec, tiling.in_size, tiling.out_size
    _, tiles_y, tiles_x = tiling.tiles
    per_row = (tiling.columns if tiling.is_pointwise else spec.w) // tiling.vector
    per_image = tiling.staged_rows * per_row
    per_channel = tiling.images * per_image
    zero_rows = tiling.staged_rows + 1
    planes = tiling.channels * tiling.images * zero_rows if tiling.lead else 0
    is_strided = not tiling.is_pointwise
    return Geometry(
        **divisor("filter_warps", tiling.filter_warps),
        **divisor("pixel_warps", tiling.pixel_warps),
        k_warps=tiling.k_warps,
        stages=tiling.stages,
        **divisor("k_tiles", tiling.k_tiles),
        **divisor("group_tiles", tiling.k_tiles // spec.groups),
        **divisor("tiles_x", tiles_x),
        **divisor("tiles_y", tiles_y),
        images=tiling.images,
        rows=tiling.rows,
        columns=tiling.columns,
        tiles_8=tiling.tiles_8,
        **divisor("image_8", tiling.rows * tiling.row_8),
        **divisor("row_8", tiling.row_8),
        batch=spec.n,
        out_h=out_h,
        out_w=out_w,
        out_map=out_h * out_w,
        out_image=spec.k * out_h * out_w,
        # Where each row begins at a multiple of so many elements, as many are written at once.
        aligned=tiling.aligned,
        in_h=in_h,
        in_w=in_w,
        channel=in_h * in_w,
        image=spec.c * in_h * in_w,
        group_elements=spec.c // spec.groups * in_h * in_w,
        stride_h=spec.stride[0] if is_strided else 1,
        stride_w=spec.stride[1] if is_strided else 1,
        pad_h=spec.padding[0],
        row_step=tiling.row_step,
        vector=tiling.vector,
        **divisor("per_channel", per_channel),
        slots_at_once=max(1, WARP * tiling.warps // per_channel),
        **divisor("per_image", per_image),
        **divisor("per_row", per_row),
        pixel_row=tiling.pixel_row,
        row_pitch=tiling.row_pitch,
        image_pitch=tiling.image_pitch,
        channel_pitch=tiling.channel_pitch,
        lead=tiling.lead,
        input_elements=tiling.input_elements,
        **divisor("zero_rows", zero_rows),
        **divisor("planes", planes),
        first_channel=tiling.first_channel,
        filters_at=tiling.filters_at,
        first_step=tiling.first_step,
        **epilogue(spec),
    )
