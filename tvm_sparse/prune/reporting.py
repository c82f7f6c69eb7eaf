"""What pruning has made of a model, layer by layer."""

from typing import Any

import numpy as np

from tvm_sparse.conv.packed_size import packed_bytes
from tvm_sparse.conv.structure import Structure
from tvm_sparse.prune.layers import as_convolution, groups_of, is_prunable, weight_of


def report(model: Any) -> list[dict[str, Any]]:
    """One row for each convolution and `Linear`: name, pattern that is found in its zeros, weights, zeros, bytes.

    ``zeros`` is a share. ``bytes`` are those of the weight as kernels with weights as data read it, ``dense_bytes`` of
    all its values in float32.
    """
    rows = []
    for name, layer in model.named_modules():
        if is_prunable(layer):
            mask = as_convolution(layer, weight_of(layer)) != 0
            structure = Structure.of(mask, groups_of(layer))
            rows.append(
                {
                    "layer": name,
                    "pattern": structure.name,
                    "weights": int(mask.size),
                    "zeros": float(1 - np.mean(mask)),
                    "bytes": packed_bytes(mask, structure),
                    "dense_bytes": 4 * int(mask.size),
                }
            )
    return rows
