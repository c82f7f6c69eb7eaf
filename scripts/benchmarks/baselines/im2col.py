"""Lowering: the input is unfolded into a matrix (C R S, pixels), and the weight times it is a library's product.

Unfolding is charged at every call. Dense with cuBLAS, in float32 or with TF32 allowed, sparse with cuSPARSE. Variants:

``unfold``
    ``torch.nn.functional.unfold``, which keeps images apart, and a batched product.
``nchw``
    The same matrix written by one strided copy.
``cnhw``
    Input and output with the channel outermost, so that the whole batch is one matrix and one product.

cuSPARSE multiplies compressed sparse rows by a row-major matrix, its faster order, without a copy; it has no product of
one sparse with many dense matrices in torch, so ``nchw`` calls it once an image.
"""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.baselines.base import Baseline, Prepared, Tensor, require_plain, settings, symmetric_padding
from benchmarks.references import ROUNDED_TOLERANCE
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.tir_writing import stretch


def cublas(variant: str, tf32: bool = False) -> Baseline:
    """Unfolded input times the dense weight."""
    family = "im2col-cublas-tf32" if tf32 else "im2col-cublas-fp32"
    return Baseline(family, variant, partial(_dense, variant, tf32), not tf32, ROUNDED_TOLERANCE if tf32 else None)


def cusparse(variant: str) -> Baseline:
    """Unfolded input times the weight as compressed sparse rows."""
    return Baseline("im2col-cusparse", variant, partial(_sparse, variant), sparse=True)


def _dense(variant: str, tf32: bool, spec: ConvSpec, weight: np.ndarray, device: Any) -> Prepared:
    """Serves every convolution; with groups there is one product a group."""
    import torch

    require_plain(spec)
    channels_first = variant == "cnhw"
    matrix = torch.from_numpy(weight).to(device).reshape(spec.groups, spec.k // spec.groups, -1)
    # With one group this stays a view that every image shares.
    batched = matrix if channels_first else matrix.expand(spec.n, *matrix.shape).reshape(-1, *matrix.shape[1:])
    shape = _output_shape(spec, channels_first)

    def call(x: Tensor) -> Tensor:
        columns = _columns(spec, x, variant)
        with settings(torch.backends.cuda.matmul, allow_tf32=tf32):
            return torch.bmm(batched, columns.view(batched.shape[0], batched.shape[2], -1)).view(shape)

    return _prepared(spec, weight, lambda x: lambda: call(x), channels_first, matrix.nbytes)


def _sparse(variant: str, spec: ConvSpec, weight: np.ndarray, device: Any) -> Prepared:
    """Serves every convolution; groups are zeros of one matrix (K, C R S)."""
    import torch

    require_plain(spec)
    channels_first = variant == "cnhw"
    shape = _output_shape(spec, channels_first)
    size = (spec.k, spec.c * spec.r * spec.s)
    arrays = [torch.from_numpy(array).to(device) for array in compressed_rows(spec, weight)]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta state")
        matrix = torch.sparse_csr_tensor(*arrays, size=size, check_invariants=True)

    def bind(x: Tensor) -> Callable[[], Tensor]:
        # Not NaN: what a product times 0 adds of the old output is the library's choice.
        y = torch.zeros(shape, device=x.device)
        # One product for the whole batch, or one an image.
        products = [y.view(spec.k, -1)] if channels_first else list(y.view(spec.n, spec.k, -1))

        def call() -> Tensor:
            columns = _columns(spec, x, variant).view(len(products), size[1], -1)
            for product, right in zip(products, columns, strict=True):
                torch.addmm(product, matrix, right, beta=0, out=product)
            return y

        return call

    return _prepared(spec, weight, bind, channels_first, sum(array.nbytes for array in arrays))


def compressed_rows(spec: ConvSpec, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Row pointers int32 (K + 1,), columns int32 and values float32 (nnz,) of the matrix (K, C R S)."""
    values, columns, rows = stretch(weight, np.arange(spec.c * spec.r * spec.s).reshape(spec.c, spec.r, spec.s))
    return rows, columns[: rows[-1]], values[: rows[-1]]


def _output_shape(spec: ConvSpec, channels_first: bool) -> tuple[int, ...]:
    n, k, height, width = spec.output_shape
    return (k, n, height, width) if channels_first else (n, k, height, width)


def _columns(spec: ConvSpec, x: Tensor, variant: str) -> Tensor:
    """The unfolded input, contiguous: (N, C, R S, OH OW), or (C, R S, N OH OW) where channels come first."""
    import torch

    x, (top, left) = symmetric_padding(spec, x)
    if variant == "unfold":
        return torch.nn.functional.unfold(x, (spec.r, spec.s), spec.dilation, (top, left), spec.stride)
    if top or left:
        x = torch.nn.functional.pad(x, (left, left, top, top))
    first, second, row, column = x.stride()
    taps = ((spec.r, spec.s), (spec.dilation[0] * row, spec.dilation[1] * column))
    pixels = ((spec.out_h, spec.out_w), (spec.stride[0] * row, spec.stride[1] * column))
    if variant == "cnhw":
        windows = x.as_strided((spec.c, *taps[0], spec.n, *pixels[0]), (first, *taps[1], second, *pixels[1]))
    else:
        windows = x.as_strided((spec.n, spec.c, *taps[0], *pixels[0]), (first, second, *taps[1], *pixels[1]))
    return windows.contiguous()


def _prepared(
    spec: ConvSpec,
    weight: np.ndarray,
    bind: Callable[[Tensor], Callable[[], Tensor]],
    channels_first: bool,
    weight_bytes: int,
) -> Prepared:
    def swap(tensor: Tensor) -> Tensor:
        return (tensor.transpose(0, 1) if channels_first else tensor).contiguous()

    return Prepared(spec, weight, swap, bind, swap, weight_bytes)


def baselines() -> list[Baseline]:
    """All libraries, precisions and layouts."""
    dense = [cublas(variant, tf32) for tf32 in (False, True) for variant in ("unfold", "nchw", "cnhw")]
    return [*dense, cusparse("nchw"), cusparse("cnhw")]
