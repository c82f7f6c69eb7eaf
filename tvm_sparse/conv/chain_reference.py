"""The float64 reference of convolutions behind each other, of which one kernel on tensor cores computes all."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tvm_sparse.conv.error_bounds import TENSOR_CORES
from tvm_sparse.conv.reference import Reference, conv2d, reference
from tvm_sparse.conv.spec import ConvSpec

# What is between layers is off by little, which changes what rounding does by this fraction at most.
_SECOND_ORDER = 2.0**-6


def chain_reference(
    specs: Sequence[ConvSpec],
    weights: Sequence[np.ndarray],
    biases: Sequence[np.ndarray | None],
    x: np.ndarray,
) -> Reference:
    """The layers' result for x (N, C, H, W), which those with a residual add, and its bound, whole as it is.

    Errors of a layer are inputs of the next one.
    """
    value, bound = x.astype(np.float64), np.zeros(x.shape)
    found = Reference(value, bound)
    for each, weight, bias in zip(specs, weights, biases, strict=True):
        spec = replace(each, n=len(x))
        residual = x if spec.residual else None
        found = reference(spec, value, weight, bias, residual).within(TENSOR_CORES, weight)
        passed_on = conv2d(spec, bound, np.abs(weight)) * (1 + _SECOND_ORDER)
        value, bound = found.value, found.bound + passed_on
    return replace(found, bound=bound)
