"""Source -> folded Relax module + ConvLayers (import, then the passes)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm

from tvm_sparse.frontend.passes.check_constants import check_constants
from tvm_sparse.frontend.passes.find_convolutions import ConvLayer, find_convolutions
from tvm_sparse.frontend.passes.fold_batch_norm import fold_batch_norm
from tvm_sparse.frontend.passes.fold_constants import fold_constants
from tvm_sparse.frontend.passes.fold_padding import fold_padding
from tvm_sparse.frontend.passes.name_convolutions import name_convolutions
from tvm_sparse.frontend.relax_import import import_model
from tvm_sparse.frontend.weights import load_weights


@dataclass(frozen=True)
class PreparedModel:
    """A Relax module after all folding, and its convolutions in program order."""

    mod: tvm.IRModule
    layers: list[ConvLayer]


def prepare(
    source: Any, example_inputs: Any = None, shapes: Mapping[str, Sequence[int]] | None = None
) -> PreparedModel:
    """Import a model and fold what can be folded; see `importer.import_model` for arguments and errors."""
    # Phase 0: read. Weights first: they carry the names of the layers, and bad ones are named there.
    weights = load_weights(source)
    module = import_model(source, example_inputs, shapes)
    # Phase 1: constants, so that pruning masks are in the weights.
    module = fold_constants(module)
    # Phase 2: names, while weights still are the layer's own.
    module = name_convolutions(module, weights)
    check_constants(module)
    # Phase 3: what surrounds a convolution moves into it.
    module = fold_padding(module)
    module = fold_batch_norm(module)
    return PreparedModel(module, find_convolutions(module))
