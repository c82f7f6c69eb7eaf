"""What operators make of channels: where those of the result come from, and what is known of them."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import Call, Expr, GenericConst, Var

from tvm_sparse.frontend.passes.channels.channel_flow import UNKNOWN, ChannelFlow, Channels, Layer, Transfer
from tvm_sparse.frontend.passes.relax_graph import convolution_weight, is_call, matrix_weight, static_shape

NCHW = "NCHW"
# What is still known of values behind an operator.
Kept = Callable[[np.ndarray], np.ndarray]


def _convolution(flow: ChannelFlow, call: Call, result: Var) -> Channels | None:
    weight, groups = convolution_weight(call), int(call.attrs.groups)
    if weight is None or not np.isfinite(weight.sum()):
        return None
    data = flow.channels(call.args[0])
    if data.axis != 1 or groups not in (1, len(data.ids)):
        return None
    used = (weight != 0).any(axis=(2, 3))
    if groups == 1:
        pads = any(map(int, call.attrs.padding))
        return _layer(flow, Layer(used, data, flow.new(len(used)), pads), result, 1)
    # Depthwise: a channel makes one or more filters of its own.
    values = np.where(used[:, 0] & (np.repeat(data.values, len(used) // groups) != 0), UNKNOWN, 0.0)
    return Channels(1, np.repeat(data.ids, len(used) // groups), values)


def _product(flow: ChannelFlow, call: Call, result: Var) -> Channels | None:
    weight = matrix_weight(call)
    if weight is None or not np.isfinite(weight.sum()):
        return None
    data, last = flow.channels(call.args[0]), len(static_shape(result) or ()) - 1
    if data.axis != last:
        return None
    return _layer(flow, Layer(weight[:, :, 0, 0] != 0, data, flow.new(len(weight)), pads=False), result, last)


def _layer(flow: ChannelFlow, layer: Layer, result: Var, axis: int) -> Channels:
    flow.layers[result] = layer
    return Channels(axis, layer.filters, np.where(layer.used @ (layer.data.values != 0), UNKNOWN, 0.0))


def _activation(function: Callable[[Call, np.ndarray], Any], flow: ChannelFlow, call: Call, _: Var) -> Channels:
    data = flow.channels(call.args[0])
    with np.errstate(all="ignore"):
        return Channels(data.axis, data.ids, _known(function(call, data.values)))


def _arithmetic(function: Callable[..., Any], flow: ChannelFlow, call: Call, result: Var) -> Channels | None:
    shape = static_shape(result) or ()
    whole = [each for each in call.args if isinstance(each, Var) and static_shape(each) == shape]
    # Of a channel that nothing needs, zeros may be left, and by these nothing is divided.
    if not whole or (is_call(call, "relax.divide") and isinstance(call.args[1], Var)):
        return None
    base = flow.channels(min(whole, key=lambda each: each not in flow.found))
    if base.axis >= len(shape):
        return None
    # Shapes are aligned at their ends.
    behind, values = len(shape) - base.axis, []
    for each in call.args:
        own = static_shape(each)
        if own is None:
            return None
        axis = len(own) - behind
        is_broadcast = axis < 0 or own[axis] != len(base.ids)
        if isinstance(each, GenericConst):
            values.append(_constant(each, axis))
        elif is_broadcast:
            flow.pin([each])
            values.append(UNKNOWN)
        elif (channels := flow.channels(each)).axis != axis:
            return None
        else:
            flow.tie(base.ids, channels.ids)
            values.append(channels.values)
    with np.errstate(all="ignore"):
        return Channels(base.axis, base.ids, _known(np.broadcast_to(function(*values), base.ids.shape)))


def _constant(constant: Expr, axis: int) -> np.ndarray | float:
    """Its one value for each index along `axis`, or altogether; `UNKNOWN` where there are more."""
    array = constant.value.numpy().astype(np.float64)
    rows = array.reshape(1, -1) if axis < 0 else np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1)
    return np.where((rows == rows[:, :1]).all(axis=1), rows[:, 0], UNKNOWN)


def _times(some: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Their product; 0 times what is not known is 0, as everywhere that zeros are left out."""
    return np.where((some == 0) | (others == 0), 0.0, some * others)


def _known(values: Any) -> np.ndarray:
    return np.where(np.isfinite(values), values, UNKNOWN)


def _zeros(values: np.ndarray) -> np.ndarray:
    """`values` of which nothing but zeros is known any more."""
    return np.where(values == 0, 0.0, UNKNOWN)


def _pool(keeps: Kept, flow: ChannelFlow, call: Call, result: Var) -> Channels | None:
    attrs, data = call.attrs, flow.channels(call.args[0])
    if (attrs.layout, attrs.out_layout) != (NCHW, NCHW) or data.axis != 1:
        return None
    sizes, outputs = static_shape(call.args[0]) or (), static_shape(result) or ()
    # The last window along H and along W begins inside the map; else it would hold nothing but padding.
    begins = [(outputs[2 + i] - 1) * int(attrs.strides[i]) - int(attrs.padding[i]) for i in (0, 1)]
    is_filled = all(begin < size for begin, size in zip(begins, sizes[2:], strict=True))
    return Channels(1, data.ids, keeps(data.values) if is_filled else np.full(data.ids.shape, UNKNOWN))


def _adaptive_pool(flow: ChannelFlow, call: Call, _: Var) -> Channels | None:
    data = flow.channels(call.args[0])
    is_nchw = (call.attrs.layout, call.attrs.out_layout) == (NCHW, NCHW) and data.axis == 1
    return data if is_nchw else None


def _resize(flow: ChannelFlow, call: Call, _: Var) -> Channels | None:
    data = flow.channels(call.args[0])
    is_inside = "crop" not in call.attrs.coordinate_transformation_mode
    is_known = call.attrs.layout == NCHW and data.axis == 1 and is_inside
    return Channels(1, data.ids, _zeros(data.values)) if is_known else None


def _pad(flow: ChannelFlow, call: Call, _: Var) -> Channels | None:
    data, widths = flow.channels(call.args[0]), [int(each) for each in call.attrs.pad_width]
    if any(widths[2 * data.axis : 2 * data.axis + 2]) or len(call.args) > 1 or call.attrs.pad_mode != "constant":
        return None
    values = np.where(data.values == float(call.attrs.pad_value), data.values, UNKNOWN)
    return Channels(data.axis, data.ids, values)


def _reduction(
    keeps: Callable[[np.ndarray], np.ndarray], flow: ChannelFlow, call: Call, result: Var
) -> Channels | None:
    data, ndim = flow.channels(call.args[0]), len(static_shape(call.args[0]) or ())
    axes = [int(axis) % ndim for axis in call.attrs.axis] if call.attrs.axis is not None else range(ndim)
    if data.axis in axes:
        return None
    axis = data.axis if call.attrs.keepdims else data.axis - sum(each < data.axis for each in axes)
    return Channels(axis, data.ids, keeps(data.values))


def _reshape(flow: ChannelFlow, call: Call, result: Var) -> Channels | None:
    """Where the axis of the channels stays, or becomes the last one with all behind it."""
    data, old, new = flow.channels(call.args[0]), static_shape(call.args[0]) or (), static_shape(result) or ()
    axis, count, behind = data.axis, len(data.ids), math.prod(old[data.axis + 1 :])
    if old[:axis] == new[:axis] and new[axis:] == (count * behind,):
        return Channels(axis, np.repeat(data.ids, behind), np.repeat(data.values, behind))
    places = [i for i in range(len(new)) if new[i] == count and math.prod(new[i + 1 :]) == behind]
    return Channels(places[0], data.ids, data.values) if places and count > 1 else None


def _permutation(flow: ChannelFlow, call: Call, result: Var) -> Channels:
    data, ndim = flow.channels(call.args[0]), len(static_shape(result) or ())
    axes = [int(axis) % ndim for axis in call.attrs.axes or reversed(range(ndim))]
    return Channels(axes.index(data.axis), data.ids, data.values)


def _concatenation(flow: ChannelFlow, call: Call, result: Var) -> Channels | None:
    if not isinstance(call.args[0], relax.Tuple) or call.attrs.axis is None:
        return None
    parts = [flow.channels(each) for each in call.args[0].fields]
    axis = int(call.attrs.axis) % len(static_shape(result) or ())
    if any(each.axis != axis for each in parts):
        return None
    return Channels(axis, *(np.concatenate([getattr(each, name) for each in parts]) for name in ("ids", "values")))


def _clipped(call: Call, values: np.ndarray) -> np.ndarray:
    least, most = (float(each.value) for each in call.args[1:])
    return np.clip(values, least, most)


def _special(name: str, x: np.ndarray) -> np.ndarray:
    """A function of SciPy, which is imported for networks that have one."""
    from scipy import special

    return getattr(special, name)(x)


_ACTIVATIONS: dict[str, Callable[[Call, np.ndarray], Any]] = {
    "nn.relu": lambda _, x: np.maximum(x, 0),
    "clip": _clipped,
    "nn.leakyrelu": lambda call, x: np.where(x < 0, float(call.attrs.alpha) * x, x),
    "sigmoid": lambda _, x: _special("expit", x),
    "tanh": lambda _, x: np.tanh(x),
    "erf": lambda _, x: _special("erf", x),
    "nn.silu": lambda _, x: x * _special("expit", x),
    "nn.gelu": lambda _, x: x * _special("ndtr", x),
    "nn.gelu_tanh": lambda _, x: _zeros(x),
    "abs": lambda _, x: np.abs(x),
    "negative": lambda _, x: -x,
    "exp": lambda _, x: np.exp(x),
}
_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": _times,
    "divide": np.divide,
    "maximum": np.maximum,
    "minimum": np.minimum,
}
_SHAPED: dict[str, Transfer] = {
    "nn.conv2d": _convolution,
    "matmul": _product,
    "nn.max_pool2d": partial(_pool, np.asarray),
    "nn.avg_pool2d": partial(_pool, _zeros),
    "nn.adaptive_avg_pool2d": _adaptive_pool,
    "image.resize2d": _resize,
    "nn.pad": _pad,
    "mean": partial(_reduction, np.asarray),
    "max": partial(_reduction, np.asarray),
    "sum": partial(_reduction, _zeros),
    "reshape": _reshape,
    "permute_dims": _permutation,
    "concat": _concatenation,
}
# Operators that are not here need their operands whole.
OPERATORS: dict[str, Transfer] = {
    **{f"relax.{name}": partial(_activation, function) for name, function in _ACTIVATIONS.items()},
    **{f"relax.{name}": partial(_arithmetic, function) for name, function in _ARITHMETIC.items()},
    **{f"relax.{name}": transfer for name, transfer in _SHAPED.items()},
}
