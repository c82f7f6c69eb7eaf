"""Compute what depends on parameters only: masks times weights, statistics of batch norms, reshaped biases."""

from __future__ import annotations

import tvm
from tvm import relax


def fold_constants(module: tvm.IRModule) -> tvm.IRModule:
    """`module` with batch norms written as arithmetic and every constant expression replaced by its value.

    A batch norm becomes ``(x - mean) / deviation * scale + shift``, each constant (1, K, 1, 1); a bias becomes an
    addition of a constant (1, K, 1, 1); ``weight_orig * weight_mask`` becomes one constant.
    """
    passes = [
        relax.transform.DecomposeOpsForInference(),
        relax.transform.CanonicalizeBindings(),
        relax.transform.FoldConstant(),
        relax.transform.DeadCodeElimination(["main"]),
    ]
    return tvm.transform.Sequential(passes)(module)
