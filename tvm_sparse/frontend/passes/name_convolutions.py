"""Give each layer of ours the name that it has in the model, which the later passes and every report use.

The name travels as the source span of the call: Relax keeps it, and nothing else reads it.
"""

import math
from collections.abc import Mapping

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Call, Expr, SourceName, Span, Var

from tvm_sparse.conv.dtypes import FLOAT32
from tvm_sparse.conv.sparsity import digest
from tvm_sparse.conv.spec import check_weight
from tvm_sparse.conv.storage import is_half, rounded
from tvm_sparse.frontend.passes.relax_graph import Graph, constant_weight, is_call, other_weight, rebuild

# Rows and columns of a weight that are compared, at most.
SAMPLE = 256


def name_convolutions(module: tvm.IRModule, weights: Mapping[str, np.ndarray], dtype: str = FLOAT32) -> tvm.IRModule:
    """`module` with a name on every layer of ours, the layer's in `weights` that has the same weight, or so in `dtype`.

    A weight used again is named ``<layer>.2``, ``<layer>.3``; a convolution whose weight is in no layer
    ``conv<position>``, a linear layer ``linear<position>``. Run it before a pass that changes weights. ModelError where
    A layer's weight holds NaN or infinity.
    """
    names = _Names(weights, dtype)
    edits: dict[Var, list[tuple[Var, Expr]]] = {}
    for var, value in Graph.of(module).definitions.items():
        weight = constant_weight(value)
        weight = other_weight(value) if weight is None else weight
        if weight is not None:
            kind = "linear" if is_call(value, "relax.matmul") else "conv"
            name = names.take(names.key_of(weight, kind), f"{kind}{len(edits)}")
            check_weight(name, weight)
            edits[var] = [(var, _with_name(value, name))]
    return rebuild(module, edits)


class _Names:
    """Hands out each layer's name to the first convolution with its weight."""

    def __init__(self, weights: Mapping[str, np.ndarray], dtype: str):
        self.taken, self.given = set(weights), set[str]()
        self.waiting: dict[str, list[str]] = {}
        for layer, weight in weights.items():
            for key in {_key(weight), *([_key(rounded(weight, dtype))] if is_half(dtype) else [])}:
                self.waiting.setdefault(key, []).append(layer)
        self.first = {key: layers[0] for key, layers in self.waiting.items()}

    def key_of(self, weight: np.ndarray, kind: str) -> str:
        """What a weight (K, C / groups, R, S) is known by; a linear layer's parameter is (K, C), or (C, K)."""
        if kind != "linear":
            return _key(weight)
        matrix = weight[:, :, 0, 0]
        key = _key(matrix)
        return _key(matrix.T) if key not in self.first else key

    def take(self, key: str, default: str) -> str:
        """The name of the first layer left with the weight of `key`, else one made from a layer before or `default`."""
        waiting = [layer for layer in self.waiting.get(key, ()) if layer not in self.given]
        if waiting:
            name = waiting[0]
        else:
            name = stem = self.first.setdefault(key, default)
            copies = 2
            while name in self.taken:
                name, copies = f"{stem}.{copies}", copies + 1
        self.taken.add(name)
        self.given.add(name)
        return name


def _key(weight: np.ndarray) -> str:
    """What tells weights apart: their shape, how many are not zero, and up to `SAMPLE` times `SAMPLE` of them.

    A linear layer may have half a gigabyte, here transposed: to read all of it took VGG16 ten seconds.
    """
    matrix = weight.reshape(len(weight), math.prod(weight.shape[1:]))
    rows, columns = (np.unique(np.linspace(0, size - 1, min(size, SAMPLE)).astype(int)) for size in matrix.shape)
    # Adding 0 turns -0.0, which a mask leaves where a negative weight was, into 0.0.
    return f"{weight.shape} {np.count_nonzero(weight)} {digest(matrix[np.ix_(rows, columns)] + np.float32(0))}"


def layer_name_of(layer: Call) -> str:
    """The name that `name_convolutions` gave, empty where it has not run."""
    return layer.span.source_name.name if layer.span is not None else ""


def _with_name(call: Call, name: str) -> Call:
    return relax.Call(call.op, call.args, call.attrs, call.ty_args, Span(SourceName(name), 0, 0, 0, 0))
