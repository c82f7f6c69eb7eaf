"""ONNX's operators that read images between their pixels, where TVM has them wrong."""

import numpy as np

from tvm_sparse.errors import ModelError
from tvm_sparse.frontend.onnx.rewriting.replace_nodes import Replacement, Rewrite


def rewrite_roi_align(to: Replacement) -> str | None:
    """TVM moves regions by half a pixel before it scales them, ONNX behind that."""
    mode = to.attributes.get("mode", "avg")
    if mode != "avg":
        # ONNX takes the largest of the weighted neighbours, not of the samples.
        raise ModelError(to.where, "its mode is not supported", mode, "avg", "export it with mode='avg'")
    coordinates = to.attributes.get("coordinate_transformation_mode", "half_pixel")
    scale = to.attributes.get("spatial_scale", 1.0)
    if to.opset < 16 or coordinates != "half_pixel" or scale == 1:
        return None
    moved = to.add("Add", to.input(1), to.constant(np.array(0.5 - 0.5 / scale, to.dtype(to.input(1)))))
    return to.add("RoiAlign", to.input(0), moved, to.input(2), **to.attributes)


def refuse_grids(to: Replacement) -> str | None:
    """GridSample stays as it is, unless TVM has no code for it, or divides by zero."""
    sizes = to.shape(to.input(0))[2:]
    mode, padding = to.attributes.get("mode", "linear"), to.attributes.get("padding_mode", "zeros")
    is_aligned, is_cubic = bool(to.attributes.get("align_corners", 0)), mode in ("cubic", "bicubic")
    if len(sizes) not in (2, 3) or (is_cubic and len(sizes) == 3):
        rank, hint = len(sizes) + 2, "sample it by mode linear"
        raise ModelError(to.where, f"it samples data of rank {rank}", mode, "rank 4, and 5 unless it is cubic", hint)
    if padding == "reflection" and is_aligned and 1 in sizes:
        hint = "use align_corners=0"
        raise ModelError(to.where, "it reflects a side of one pixel at its middle", sizes, "sides of 2 or more", hint)
    return None


def refuse_single_pixels(to: Replacement) -> str | None:
    """AffineGrid stays as it is, unless it aligns the corners of a side that has one."""
    sizes = to.array_of_input(1, "size").tolist()[2:]
    if to.attributes.get("align_corners", 0) and 1 in sizes:
        hint = "use align_corners=0"
        raise ModelError(to.where, "it aligns the corners of a side of one pixel", sizes, "sides of 2 or more", hint)
    return None


REWRITES: dict[str, Rewrite] = {
    "RoiAlign": rewrite_roi_align,
    "GridSample": refuse_grids,
    "AffineGrid": refuse_single_pixels,
}
