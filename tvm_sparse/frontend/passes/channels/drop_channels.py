"""Take filters and channels out of a network that add nothing but zeros to its outputs, wherever they are in it.

A channel is not needed where no filter that is needed reads it, or where it is zero whatever the input. What channels
add that are other numbers whatever the input, as filters of zeros with a bias make them, goes into the bias of what
reads them; where that pads with zeros, one of them stays and stands for all.
"""

import math

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Call, Expr, GenericConst, SourceName, Span, Var

from tvm_sparse.frontend.passes.channels.channel_flow import ChannelFlow, Channels, Layer
from tvm_sparse.frontend.passes.channels.channel_operators import OPERATORS
from tvm_sparse.frontend.passes.folding.fold_batch_norm import fold_batch_norm
from tvm_sparse.frontend.passes.relax_graph import (
    Graph,
    convolution_weight,
    is_call,
    matrix_weight,
    rebuild,
    static_shape,
)

# Filters stay multiples of this, or of the powers of two in it, where they were: dense kernels compute vectors of
# them, and take twice as long for 61 as for 64.
WIDTH = 16


def drop_channels(module: tvm.IRModule) -> tvm.IRModule:
    """`module` without them, or itself where there are none; sums are of the same numbers without the zeros.

    Run it when batch norms are in the layers. Layers keep their names, and some of their filters.
    """
    graph = Graph.of(module)
    flow = ChannelFlow.of(graph, OPERATORS)
    needed = _needed(flow)
    kept = _in_whole_vectors(flow, needed)
    return module if needed.all() else _Rewriting(graph, flow, needed, kept).of(module)


def _needed(flow: ChannelFlow) -> np.ndarray:
    """Which channels must stay, bool, by their ids; what one round takes out may be all that reads another."""
    pinned = flow.pinned
    kept = np.ones_like(pinned)
    while True:
        needed = pinned.copy()
        for layer in flow.layers.values():
            needed[layer.needed(kept)] = True
        needed = flow.together(needed)
        if (needed == kept).all():
            return kept
        kept = needed


def _in_whole_vectors(flow: ChannelFlow, needed: np.ndarray) -> np.ndarray:
    """Which channels stay: those `needed`, and what fills the vectors of each layer, one at least."""
    kept = needed
    while True:
        more = np.concatenate([_missing(layer, kept) for layer in flow.layers.values()] or [np.zeros(0, int)])
        if not len(more):
            return kept
        kept = kept.copy()
        kept[more] = True
        kept = flow.together(kept)


def _missing(layer: Layer, kept: np.ndarray) -> np.ndarray:
    step, stay = math.gcd(len(layer.filters), WIDTH), kept[layer.filters]
    count = max(step, -(-int(stay.sum()) // step) * step) - int(stay.sum())
    return layer.filters[~stay][:count]


class _Rewriting:
    """Bindings of tensors with the channels that are `kept`; filters that are not `needed` become zeros."""

    def __init__(self, graph: Graph, flow: ChannelFlow, needed: np.ndarray, kept: np.ndarray):
        self._graph, self._flow, self._needed, self._kept = graph, flow, needed, kept
        self._cut: dict[Var, Var] = {}

    def of(self, module: tvm.IRModule) -> tvm.IRModule:
        """`module` with them in the place of others."""
        edits = {}
        for var, value in self._graph.definitions.items():
            channels = self._flow.found.get(var)
            if channels is None:
                continue
            if not channels.kept(self._kept).all():
                self._cut[var] = type(var)(var.name, relax.TensorType(self._shape(var, channels), str(var.ty.dtype)))
            if var in self._cut or self._reads_cut(value) or self._becomes_zeros(self._flow.layers.get(var)):
                edits[var] = self._bindings(var, value, channels)
        return fold_batch_norm(rebuild(module, edits)) if edits else module

    def _bindings(self, var: Var, call: Call, channels: Channels) -> list[tuple[Var, Expr]]:
        layer, result, value = self._flow.layers.get(var), self._cut.get(var, var), self._rewritten(var, call, channels)
        bias = self._bias(layer, call) if layer is not None else None
        if bias is None:
            return [(result, value)]
        sums, behind = type(var)(f"{var.name}_sums", result.ty), len(static_shape(var) or ()) - channels.axis - 1
        return [(sums, value), (result, relax.op.add(sums, relax.const(bias.reshape(-1, *(1,) * behind))))]

    def _becomes_zeros(self, layer: Layer | None) -> bool:
        return layer is not None and bool((~self._needed[layer.filters] @ layer.used).any())

    def _reads_cut(self, value: Expr) -> bool:
        return any(each in self._cut for each in relax.analysis.free_vars(value))

    def _shape(self, var: Var, channels: Channels) -> list[int]:
        shape = list(static_shape(var) or ())
        shape[channels.axis] = int(channels.kept(self._kept).sum())
        return shape

    def _rewritten(self, var: Var, call: Call, channels: Channels) -> Expr:
        if is_call(call, "relax.reshape"):
            return relax.op.reshape(self._operand(call.args[0]), self._shape(var, channels))
        if is_call(call, "relax.nn.conv2d") or is_call(call, "relax.matmul"):
            return self._layer(var, call, channels)
        behind = len(static_shape(var) or ()) - channels.axis
        arguments = [
            self._constant(each, channels, behind) if isinstance(each, GenericConst) else self._operand(each)
            for each in call.args
        ]
        return relax.Call(call.op, arguments, call.attrs, call.ty_args, call.span)

    def _operand(self, argument: Expr) -> Expr:
        if isinstance(argument, relax.Tuple):
            return relax.Tuple([self._operand(each) for each in argument.fields])
        return self._cut.get(argument, argument) if isinstance(argument, Var) else argument

    def _constant(self, constant: GenericConst, channels: Channels, behind: int) -> Expr:
        """A constant of arithmetic, whose shape is aligned with the result's at its end."""
        array, kept = constant.value.numpy(), channels.kept(self._kept)
        axis = array.ndim - behind
        is_cut = axis >= 0 and array.shape[axis] == len(kept) and not kept.all()
        return relax.const(np.compress(kept, array, axis)) if is_cut else constant

    def _layer(self, var: Var, call: Call, channels: Channels) -> Expr:
        layer, data, weight = self._flow.layers.get(var), self._operand(call.args[0]), _weight(call)
        if layer is not None:
            weight = self._with_known(layer, weight)[:, layer.data.kept(self._kept)]
        weight = weight[channels.kept(self._kept)]
        if is_call(call, "relax.matmul"):
            found = relax.op.matmul(data, relax.const(np.ascontiguousarray(weight[:, :, 0, 0].T)))
        else:
            # Depthwise convolutions are no `Layer`.
            groups = 1 if layer is not None else int(self._flow.found[call.args[0]].kept(self._kept).sum())
            attrs, constant = call.attrs, relax.const(np.ascontiguousarray(weight))
            geometry = (attrs.strides, attrs.padding, attrs.dilation, groups)
            found = relax.op.nn.conv2d(data, constant, *geometry, out_dtype="float32")
        # A linear layer of few zeros had no name, and may have many of them now.
        span = call.span or Span(SourceName(f"linear_{var.name}"), 0, 0, 0, 0)
        return relax.Call(found.op, found.args, found.attrs, found.ty_args, span)

    def _known(self, layer: Layer) -> np.ndarray:
        """What the inputs are that are gone, and known, else 0."""
        values = layer.data.values
        return np.where(np.isnan(values) | layer.data.kept(self._kept), 0, values)

    def _with_known(self, layer: Layer, weight: np.ndarray) -> np.ndarray:
        """The weight of the filters that are needed, where one known input adds what those did that are gone."""
        weight = np.where(self._needed[layer.filters][:, None, None, None], weight, np.float32(0))
        if layer.pads and (known := self._known(layer)).any():
            one = layer.representative
            weight[:, one] += np.tensordot(weight, known / layer.data.values[one], ((1,), (0,)))
        return weight

    def _bias(self, layer: Layer, call: Call) -> np.ndarray | None:
        """What known inputs that are gone have added to each filter that stays, float32 (filters,), if anything."""
        known = self._known(layer)
        if layer.pads or not known.any():
            return None
        bias = _weight(call).sum(axis=(2, 3), dtype=np.float64) @ known
        return np.where(self._needed[layer.filters], bias, 0)[self._kept[layer.filters]].astype(np.float32)


def _weight(call: Call) -> np.ndarray:
    weight = convolution_weight(call)
    weight = matrix_weight(call) if weight is None else weight
    assert weight is not None, "only such layers have channels"
    return weight
