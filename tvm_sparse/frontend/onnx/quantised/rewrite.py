"""All that makes a quantised ONNX model one of float32 operators."""

from typing import Any

import numpy as np

from tvm_sparse.frontend.onnx.graph.constants import array_of, opset_of
from tvm_sparse.frontend.onnx.graph.nodes import drop_unread
from tvm_sparse.frontend.onnx.quantised.integers import Integers
from tvm_sparse.frontend.onnx.quantised.operators import EXPANSIONS, is_quantising
from tvm_sparse.frontend.onnx.rewriting.fold_nodes import fold_nodes
from tvm_sparse.frontend.onnx.rewriting.replace_nodes import replace_nodes
from tvm_sparse.frontend.onnx.rewriting.rewrite import convert_operators
from tvm_sparse.frontend.optional_imports import onnx
from tvm_sparse.frontend.scales import LayerScales

# The first operator set with Round.
_ROUNDING_OPSET = 11
# What ONNX Runtime's quantiser adds to the name of a weight.
_SUFFIX = "_quantized"
# An operator of ONNX Runtime that adds the zero point before it rounds; others add it behind.
_WITH_ZERO = "QLinearAveragePool"


def write_in_floats(where: str, model: Any, in_integers: bool) -> dict[str, LayerScales]:
    """Rewrite the quantised operators of an `onnx.ModelProto` in place, as layers on integers if so.

    The scales of these, by the names of their nodes. ModelError where a form is not known.
    """
    if not any(map(is_quantising, model.graph.node)):
        return {}
    if opset_of(model) < _ROUNDING_OPSET:
        convert_operators(where, model, _ROUNDING_OPSET)
    _name_weights(model)
    _widen_constants(model)
    with_zero = {each.output[0] for each in model.graph.node if each.op_type == _WITH_ZERO}
    replace_nodes(where, model, EXPANSIONS)
    # The others, so that weights are integers still, whatever form they have had.
    fold_nodes(where, model, kept=("DequantizeLinear",))
    integers = Integers(with_zero)
    if in_integers:
        replace_nodes(where, model, integers.rewrites)
        drop_unread(model.graph)
    return integers.layers


def _widen_constants(model: Any) -> None:
    """Write constants of four bits, which older operator sets do not know, in eight, where they are dequantised."""
    kinds, tensors = onnx.TensorProto, {each.name: each for each in model.graph.initializer}
    four = {name for name, each in tensors.items() if each.data_type in (kinds.INT4, kinds.UINT4)}
    for node in model.graph.node:
        is_constant = node.op_type == "DequantizeLinear" and node.input[0] in tensors
        four -= {"" if is_constant else name for name in node.input}
    for name in four:
        tensors[name].CopyFrom(onnx.numpy_helper.from_array(array_of(tensors[name]).astype(np.int8), name))


def _name_weights(model: Any) -> None:
    """Give quantised weights the names that they had before."""
    taken = {value.name for value in (*model.graph.initializer, *model.graph.input)}
    tensors = {each.name: each for each in model.graph.initializer if each.name.endswith(f".weight{_SUFFIX}")}
    names = {old: old.removesuffix(_SUFFIX) for old in tensors if old.removesuffix(_SUFFIX) not in taken}
    for old, new in names.items():
        tensors[old].name = new
    for node in model.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
