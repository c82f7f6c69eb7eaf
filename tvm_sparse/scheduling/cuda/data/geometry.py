"""The numbers that a data kernel is called with.

The kernel (codegen/cuda/data.cu) is the same for every shape and tiling; these tell it both.
"""

from typing import NamedTuple

from tvm_sparse.scheduling.cuda.data.tiling import Staging, Tiling
from tvm_sparse.scheduling.cuda.library.kernel_numbers import divisor, epilogue


class Geometry(NamedTuple):
    """The kernel's integer parameters, in its order; their meaning is said there."""

    rows: int
    columns: int
    filters: int
    parts: int
    pixel_groups: int
    pixel_groups_m: int
    filters_at_once: int
    pitch: int
    pitch_m: int
    tiles_x: int
    tiles_x_m: int
    tiles_y: int
    tiles_y_m: int
    quads: int
    quads_m: int
    k_tiles: int
    k_tiles_m: int
    out_h: int
    out_w: int
    out_map: int
    out_image: int
    in_h: int
    in_w: int
    channel: int
    image: int
    part_elements: int
    group_elements: int
    stride_h: int
    stride_w: int
    pad_h: int
    pad_w: int
    mode: int
    vector: int
    vectors: int
    per_channel: int
    per_channel_m: int
    per_row: int
    per_row_m: int
    plane_rows: int
    plane_rows_m: int
    planes_w: int
    planes_w_m: int
    plane: int
    plane_m: int
    row_pitch: int
    channel_pitch: int
    lead: int
    input_floats: int
    zero_rows: int
    first_pair: int
    has_bias: int
    has_residual: int
    relu: int
    relu_max: int


def geometry(tiling: Tiling) -> Geometry:
    """What the kernel is called with."""
    spec, (in_h, in_w), (out_h, out_w) = tiling.spec, tiling.in_size, tiling.out_size
    planes_h, planes_w = tiling.planes
    plane = tiling.plane_rows * tiling.row_pitch
    row_vectors = {Staging.ROWS: (tiling.columns if tiling.is_pointwise else spec.w) // tiling.vector}
    per_row = row_vectors.get(tiling.staging, 1)
    if tiling.staging is Staging.ROWS:
        per_channel = planes_h * tiling.plane_rows * per_row
    else:
        per_channel = tiling.channel_pitch // tiling.vector if tiling.staging is Staging.PLANES else 1
    vectors = tiling.part_channels * per_channel
    if tiling.staging is Staging.RUN:
        vectors = tiling.part_channels * tiling.channel_pitch // 4
    zero_rows = tiling.part_channels * planes_h * tiling.plane_rows + 1 if tiling.lead else 0
    quads, k_tiles = tiling.places // 4, spec.k // spec.groups // tiling.filters
    tiles_y, tiles_x = tiling.tiles
    return Geometry(
        rows=tiling.rows,
        columns=tiling.columns,
        filters=tiling.filters,
        parts=tiling.parts,
        **divisor("pixel_groups", tiling.pixel_groups),
        filters_at_once=tiling.warps // tiling.pixel_groups,
        **divisor("pitch", tiling.pitch),
        **divisor("tiles_x", tiles_x),
        **divisor("tiles_y", tiles_y),
        **divisor("quads", quads),
        **divisor("k_tiles", k_tiles),
        out_h=out_h,
        out_w=out_w,
        out_map=out_h * out_w,
        out_image=spec.k * out_h * out_w,
        in_h=in_h,
        in_w=in_w,
        channel=in_h * in_w,
        image=spec.c * in_h * in_w,
        part_elements=tiling.part_channels * in_h * in_w,
        group_elements=spec.c // spec.groups * in_h * in_w,
        stride_h=1 if tiling.is_pointwise else spec.stride[0],
        stride_w=1 if tiling.is_pointwise else spec.stride[1],
        pad_h=spec.padding[0],
        pad_w=spec.padding[1],
        mode=int(tiling.staging),
        vector=tiling.vector,
        vectors=vectors,
        **divisor("per_channel", per_channel),
        **divisor("per_row", per_row),
        **divisor("plane_rows", tiling.plane_rows),
        **divisor("planes_w", planes_w),
        **divisor("plane", plane),
        row_pitch=tiling.row_pitch,
        channel_pitch=tiling.channel_pitch,
        lead=tiling.lead,
        input_floats=tiling.input_floats,
        zero_rows=zero_rows,
        first_pair=tiling.first_pair,
        **epilogue(spec),
    )
