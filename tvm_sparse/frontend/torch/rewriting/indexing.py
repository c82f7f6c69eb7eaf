"""Torch operators that pick elements, as operators that pick them from the front and never count from the end.

TVM takes -1 for the element before the first, outside of the tensor. The functions are decompositions as
`ExportedProgram.run_decompositions` calls them; NotImplemented leaves the operator.
"""

import math
from typing import Any

import torch


def select(x: Any, dim: int, index: int) -> Any:
    return NotImplemented if index >= 0 else x.select(dim, index + x.shape[dim])


def from_front(index: Any, size: int) -> Any:
    """`index`, with that of a negative position counted from the first element."""
    index = index.long()
    return torch.where(index < 0, index + size, index)


def _in_range(index: Any, size: int) -> Any:
    """`index` from the front, looked up among all positions: indices by which elements are taken are checked."""
    flat = torch.arange(size).index_select(0, from_front(index.reshape(-1), size))
    return flat.reshape(index.shape)


def pick(x: Any, indices: Any) -> Any:
    """``x[indices]``: one index as `index_select`, several moved to the front, where TVM expects them."""
    dims = [dim for dim, index in enumerate(indices) if index is not None]
    if any(indices[dim].dtype == torch.bool for dim in dims):
        return NotImplemented
    if len(dims) == 1:
        dim, index = dims[0], indices[dims[0]]
        picked = x.index_select(dim, from_front(index.reshape(-1), x.shape[dim]))
        return picked.reshape([*x.shape[:dim], *index.shape, *x.shape[dim + 1 :]])
    if dims == list(range(len(indices))):
        return NotImplemented
    others = [dim for dim in range(x.ndim) if dim not in dims]
    picked = torch.ops.aten.index.Tensor(x.permute(*dims, *others), [indices[dim] for dim in dims])
    # Indices that stand side by side leave their result in their place, others at the front.
    rank = picked.ndim - len(others)
    before = dims[0] if dims[-1] - dims[0] == len(dims) - 1 else 0
    order = [*range(rank, rank + before), *range(rank), *range(rank + before, picked.ndim)]
    return picked.permute(order)


def put(x: Any, indices: Any, values: Any, accumulate: bool = False) -> Any:
    """``x[indices] = values``, as a scatter over all elements in a row."""
    given = {dim: index for dim, index in enumerate(indices) if index is not None}
    if any(index.dtype == torch.bool for index in given.values()):
        return _put_where(x, indices, values) if values.numel() == 1 and not accumulate else NotImplemented
    dims = list(given)
    broadcast = list(torch.broadcast_shapes(*(index.shape for index in given.values())))
    before = dims[0] if dims[-1] - dims[0] == len(dims) - 1 else 0
    others = [dim for dim in range(x.ndim) if dim not in given]
    shape = [*(x.shape[dim] for dim in others[:before]), *broadcast, *(x.shape[dim] for dim in others[before:])]
    position = torch.zeros(shape, dtype=torch.int64)
    for dim in range(x.ndim):
        if dim in given:
            # Out of range in one dimension, it may still be a position of another element.
            index = _in_range(given[dim], x.shape[dim])
            index = index.reshape([*index.shape, *[1] * (len(others) - before)])
        else:
            axis = others.index(dim)
            axis += 0 if axis < before else len(broadcast)
            index = torch.arange(x.shape[dim]).reshape([-1, *[1] * (len(shape) - axis - 1)])
        position = position + index * math.prod(x.shape[dim + 1 :])
    flat, source = position.reshape(-1), values.to(x.dtype).expand(shape).reshape(-1)
    scatter = torch.scatter_add if accumulate else torch.scatter
    return scatter(x.reshape(-1), 0, flat, source).reshape(x.shape)


def _put_where(x: Any, indices: Any, value: Any) -> Any:
    """One value where a single mask over the first dimensions is true."""
    if len(indices) > 1:
        return NotImplemented
    mask = indices[0].reshape([*indices[0].shape, *[1] * (x.ndim - indices[0].ndim)])
    return torch.where(mask, value.reshape(()).to(x.dtype), x)


def restrided(x: Any, size: Any, stride: Any, offset: int | None = None) -> Any:
    """A view of all elements in their order, as of a pooled map whose channels come last in memory."""
    plain = torch.empty(size, device="meta").stride()
    is_plain = all(n == 1 or own == each for n, own, each in zip(size, stride, plain, strict=True))
    is_view = x.is_contiguous() and is_plain and not offset and math.prod(size) == x.numel()
    return x.reshape(size) if is_view else NotImplemented


def windows(x: Any, dim: int, size: int, step: int) -> Any:
    """`Tensor.unfold`: slices of `size` elements, `step` apart, as a last dimension."""
    dim %= max(x.ndim, 1)
    count = (x.shape[dim] - size) // step + 1
    positions = torch.arange(0, count * step, step).reshape(-1, 1) + torch.arange(size)
    cut = x.index_select(dim, positions.reshape(-1))
    return cut.reshape([*x.shape[:dim], count, size, *x.shape[dim + 1 :]]).movedim(dim + 1, -1)
