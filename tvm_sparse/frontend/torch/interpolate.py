"""Interpolation of maps as torch computes it, axis by axis.

Every mode is linear in the map and separable, so what torch itself makes of the identity matrix says all of an axis:
which line each output takes where it is the nearest, else the matrix to multiply by.
"""

from typing import Any

# Operator -> whether it takes one line, and mixes none.
INTERPOLATIONS = {
    "_upsample_bicubic2d_aa.vec": False,
    "_upsample_bilinear2d_aa.vec": False,
    "_upsample_nearest_exact1d.vec": True,
    "_upsample_nearest_exact2d.vec": True,
    "_upsample_nearest_exact3d.vec": True,
    "upsample_bicubic2d.vec": False,
    "upsample_bilinear2d.vec": False,
    "upsample_linear1d.vec": False,
    "upsample_nearest1d.vec": True,
    "upsample_nearest2d.vec": True,
    "upsample_nearest3d.vec": True,
    "upsample_trilinear3d.vec": False,
}


def interpolate(node: Any, importer: Any) -> Any:
    """TVM's own resize where it is torch's, else lines that are taken, or products of matrices."""
    from tvm import relax

    from tvm_sparse.frontend.torch.graph import argument, operator_name

    name, emit = operator_name(node), importer.block_builder.emit
    x = importer.env[node.args[0]]
    source, sizes = list(node.args[0].meta["val"].shape[2:]), list(node.meta["val"].shape[2:])
    scales = argument(node, "scale_factors") or [None] * len(sizes)
    if _is_resize(name, source, sizes, scales, argument(node, "align_corners")):
        corners = "align_corners" if argument(node, "align_corners") else "half_pixel"
        method = "nearest_neighbor" if INTERPOLATIONS[name] else "linear"
        return emit(relax.op.image.resize2d(x, sizes, None, "NCHW", method, corners))
    for axis, (count, size, scale) in enumerate(zip(source, sizes, scales, strict=True), start=2):
        if (count, scale or 1) == (size, 1):
            continue
        matrix = _matrix(node, count, size, scale)
        if INTERPOLATIONS[name]:
            x = emit(relax.op.take(x, relax.const(matrix.argmax(0), "int64"), axis))
        else:
            x = _multiplied(x, matrix, axis, emit)
    return x


def _is_resize(name: str, source: Any, sizes: Any, scales: Any, corners: bool | None) -> bool:
    """Whether TVM's resize of maps is known to be torch's: the fastest form, which others schedule."""
    ratios = [size / own for own, size in zip(source, sizes, strict=True)]
    if any(scale is not None and scale != ratio for scale, ratio in zip(scales, ratios, strict=True)):
        return False
    if name == "upsample_nearest2d.vec":
        return all(ratio.is_integer() for ratio in ratios)
    return name == "upsample_bilinear2d.vec" and not (corners and 1 in sizes)


def _matrix(node: Any, count: int, size: int, scale: float | None) -> Any:
    """What the operator makes of the identity along one axis: float32 array (count, size)."""
    import torch

    from tvm_sparse.frontend.torch.graph import argument

    rank = node.args[0].meta["val"].ndim - 2
    flags = [] if (corners := argument(node, "align_corners")) is None else [corners]
    # Two columns, of which one is read: torch mistakes the strides of maps of a single one.
    identity = torch.eye(count).reshape([1, count, count, *[1] * (rank - 1)]).repeat([1, 1, 1, *[2] * (rank - 1)])
    if scale is None:
        made = node.target(identity, [size, *[2] * (rank - 1)], *flags, None)
    else:
        made = node.target(identity, None, *flags, [scale, *[1.0] * (rank - 1)])
    return made.reshape(count, size, -1)[..., 0].numpy()


def _multiplied(x: Any, matrix: Any, axis: int, emit: Any) -> Any:
    """`x` times a matrix along one axis."""
    from tvm import relax

    rank = x.ty.ndim
    if axis == rank - 1:
        return emit(relax.op.matmul(x, relax.const(matrix)))
    if axis == rank - 2:
        return emit(relax.op.matmul(relax.const(matrix.T.copy()), x))
    order = [dim for dim in range(rank) if dim != axis] + [axis]
    product = emit(relax.op.matmul(emit(relax.op.permute_dims(x, order)), relax.const(matrix)))
    return emit(relax.op.permute_dims(product, [order.index(dim) for dim in range(rank)]))
