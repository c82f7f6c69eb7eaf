"""Rewrites torch programs into the operators that TVM reads right: by torch's decompositions, and by some of ours."""

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch._export import utils

from tvm_sparse.frontend.torch.rewriting import indexing, promotion
from tvm_sparse.frontend.torch.rewriting.autocast import autocast_off
from tvm_sparse.frontend.torch.rewriting.promotion import Decomposition, aten

# Operators that torch would decompose, and converters of this package take as they are.
_KEPT = (
    "_upsample_bicubic2d_aa.vec",
    "_upsample_bilinear2d_aa.vec",
    "_upsample_nearest_exact1d.vec",
    "_upsample_nearest_exact2d.vec",
    "_upsample_nearest_exact3d.vec",
    "upsample_bicubic2d.vec",
    "upsample_bilinear2d.vec",
    "upsample_linear1d.vec",
    "upsample_nearest1d.vec",
    "upsample_nearest2d.vec",
    "upsample_nearest3d.vec",
    "upsample_trilinear3d.vec",
)
# Operators that torch can decompose, but takes for primitive ones.
_OF_TORCH = ("addmv.default", "grid_sampler_2d.default", "linalg_vector_norm.default")


def decomposed(program: Any) -> Any:
    """A `torch.export.ExportedProgram` of operators on one element type each, none of them in place."""
    with _operators_named_once(), autocast_off():
        table = torch.export.default_decompositions()
        for name in _KEPT:
            table.pop(aten(name), None)
        table.update({aten(name): decomposition_table[aten(name)] for name in _OF_TORCH})
        table.update({aten(name): ours for name, ours in _decompositions().items()})
        return program.run_decompositions(table)


@contextlib.contextmanager
def _operators_named_once() -> Iterator[None]:
    """Within it torch gives names to all operators once, not for each of its packages: half the time of small programs.

    No operator is made within it, so those named before are all.
    """
    name = "_materialize_cpp_cia_ops"
    every = getattr(utils, name, None)
    if every is None:
        # Another torch, which does it elsewhere.
        yield
        return
    every()
    setattr(utils, name, lambda: None)
    try:
        yield
    finally:
        setattr(utils, name, every)


def _decompositions() -> dict[str, Decomposition]:
    return promotion.decompositions() | {
        "_unsafe_index.Tensor": indexing.pick,
        "_unsafe_index_put.default": indexing.put,
        "any.default": lambda x: x.reshape(-1).any(0),
        "any.dim": any_of_numbers,
        "any.dims": any_of_numbers,
        "as_strided.default": indexing.restrided,
        "avg_pool2d.default": average_pool,
        "avg_pool3d.default": average_pool,
        "cumprod.default": lambda x, dim, *, dtype=None: _accumulated(torch.cumprod, x, dim, dtype),
        "cumsum.default": lambda x, dim, *, dtype=None: _accumulated(torch.cumsum, x, dim, dtype),
        "elu.default": elu,
        "exp2.default": lambda x: (x * 0.6931471805599453).exp(),
        "erfc.default": lambda x: 1 - x.erf(),
        "fmax.default": lambda a, b: _without_nan("maximum.default", a, b),
        "fmin.default": lambda a, b: _without_nan("minimum.default", a, b),
        # Torch's own bounds it twice, each time on one side.
        "hardsigmoid.default": lambda x: (x + 3).clamp(0, 6) / 6,
        "hardswish.default": lambda x: x * (x + 3).clamp(0, 6) / 6,
        "index.Tensor": indexing.pick,
        "index_put.default": indexing.put,
        "max.dim": lambda x, dim, keepdim=False: (x.amax(dim, keepdim), x.argmax(dim, keepdim)),
        "min.dim": lambda x, dim, keepdim=False: (x.amin(dim, keepdim), x.argmin(dim, keepdim)),
        "native_group_norm.default": group_norm,
        "one_hot.default": one_hot,
        "select.int": indexing.select,
        "sort.stable": lambda x, *, stable, dim=-1, descending=False: x.sort(dim, descending),
        "unfold.default": indexing.windows,
        "var_mean.correction": lambda x, dim=None, *, correction=None, keepdim=False: (
            x.var(dim, correction=correction, keepdim=keepdim),
            x.mean(dim, keepdim),
        ),
    }


def any_of_numbers(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """Of booleans alone: TVM's result has the type of its input."""
    return NotImplemented if x.dtype == torch.bool else (x != 0).any(dim, keepdim)


def _accumulated(accumulate: Any, x: Any, dim: int, dtype: Any) -> Any:
    """In the type of the result, which is long for integers: TVM keeps that of the input."""
    dtype = dtype or (x.dtype if x.is_floating_point() else torch.int64)
    return NotImplemented if x.dtype == dtype else accumulate(x.to(dtype), dim)


def group_norm(x: Any, weight: Any, bias: Any, n: int, c: int, size: int, groups: int, epsilon: float) -> Any:
    """With a weight and a bias, without which TVM fails."""
    if weight is not None and bias is not None:
        return NotImplemented
    weight, bias = torch.ones(c) if weight is None else weight, torch.zeros(c) if bias is None else bias
    return torch.ops.aten.native_group_norm(x, weight, bias, n, c, size, groups, epsilon)


def one_hot(x: Any, classes: int = -1) -> Any:
    """As rows of a table, of which none has a negative index; torch 2.11 scatters ones, where TVM counts back."""
    if classes < 0:
        return NotImplemented
    return torch.ops.aten.embedding(torch.eye(classes), x).to(torch.int64)


def elu(x: Any, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Any:
    """With the scales, of which TVM knows none: SELU and CELU are written with them."""
    return torch.where(x > 0, x * scale, ((x * input_scale).exp() - 1) * (alpha * scale))


def average_pool(
    x: Any,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    """Without a divisor, which TVM ignores."""
    if divisor_override is None or ceil_mode:
        return NotImplemented
    pool = torch.ops.aten.avg_pool2d if len(kernel) == 2 else torch.ops.aten.avg_pool3d
    return pool(x, kernel, stride, padding) * (math.prod(kernel) / divisor_override)


def _without_nan(name: str, a: Any, b: Any) -> Any:
    return torch.where(a.isnan(), b, torch.where(b.isnan(), a, aten(name)(a, b)))
