"""What computes as well on tensors in blocks of channels (`conv.nchwc`), so that they stay in blocks between layers.

Pools, concatenations of channels and operators of single elements write blocks as they read them. A mean over all
pixels reads blocks; what it writes lies the same either way.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Call, Expr, GenericConst, Op, Var

from tvm_sparse.compiler.layouts.layout_free import POOLS
from tvm_sparse.conv.nchwc import Layouts
from tvm_sparse.frontend.passes.find_convolutions import Group
from tvm_sparse.frontend.passes.relax_graph import ELEMENTWISE, Graph, is_call, is_float32, new_var, static_shape, view

_AXES, _PIXELS = len("NCHW"), [2, 3]

Bindings = list[tuple[Var, Expr]]


@dataclass(frozen=True)
class Kept:
    """An operator, the tensors (N, C, H, W) that it reads in blocks, and whether its result lies in blocks then."""

    value: Call
    reads: Sequence[Expr]
    writes: bool = True

    def fits(self, channels: int) -> bool:
        """Whether what it joins is whole blocks of so many `channels`, but for the last."""
        first = self.reads[:-1] if is_call(self.value, "relax.concat") else ()
        return not any((static_shape(each) or ())[1] % channels for each in first)


def kept_in_blocks(graph: Graph, groups: Sequence[Group]) -> dict[Var, Kept]:
    """What of ``main`` computes on blocks of channels, by its result, but for the layers, which are `groups`."""
    of_layers = {var for group in groups for var in (*group.absorbed, group.result)}
    found = {var: _kept(value) for var, value in graph.definitions.items() if var not in of_layers}
    return {var: kept for var, kept in found.items() if kept is not None}


def _kept(value: Expr) -> Kept | None:
    if not isinstance(value, Call) or not isinstance(value.op, Op) or not is_float32(value):
        return None
    if is_call(value, "relax.mean"):
        axes = sorted(int(each) % _AXES for each in value.attrs.axis or ())
        is_of_pixels = len(static_shape(value.args[0]) or ()) == _AXES and axes == _PIXELS
        return Kept(value, value.args, writes=False) if is_of_pixels else None
    shape = static_shape(value)
    if shape is None or len(shape) != _AXES:
        return None
    if value.op.name in POOLS:
        return Kept(value, value.args) if (value.attrs.layout, value.attrs.out_layout) == ("NCHW", "NCHW") else None
    if is_call(value, "relax.concat"):
        is_of_channels = int(value.attrs.axis) == 1 and isinstance(value.args[0], relax.Tuple)
        return Kept(value, value.args[0].fields) if is_of_channels else None
    if value.op.name not in ELEMENTWISE:
        return None
    tensors = [each for each in value.args if isinstance(each, Var | GenericConst)]
    reads = [each for each in tensors if isinstance(each, Var) and static_shape(each) == shape]
    are_vectors = all(is_float32(each) and _is_vector(each, shape) for each in tensors if each not in set(reads))
    return Kept(value, reads) if reads and are_vectors else None


def _is_vector(value: Expr, shape: Sequence[int]) -> bool:
    """Whether it is one number, or one for each channel of each image or of all, for a result of that shape."""
    own = static_shape(value)
    if own is None or math.prod(own) == 1:
        return own is not None and len(own) <= _AXES
    n, c, *size = _of_all_axes(own)
    return size == [1, 1] and c == shape[1] and n in (1, shape[0])


def _of_all_axes(shape: Sequence[int]) -> tuple[int, ...]:
    return (1,) * (_AXES - len(shape)) + tuple(shape)


def on_blocks(module: tvm.IRModule, kept: Mapping[Var, Kept], twins: Mapping[Expr, Var]) -> dict[Var, Bindings]:
    """New bindings of `kept`, where they read tensors in blocks; `twins` has all such tensors, their results too."""
    found = {var: each for var, each in kept.items() if each.reads[0] in twins}
    return {var: _on_blocks(module, var, each, twins) for var, each in found.items()}


def _on_blocks(module: tvm.IRModule, var: Var, kept: Kept, twins: Mapping[Expr, Var]) -> Bindings:
    value, sources = kept.value, [twins[each] for each in kept.reads]
    layouts = Layouts(int(sources[0].ty.shape[-1]), x=True)
    if not kept.writes:
        return _mean(module, var, sources[0], layouts)
    if is_call(value, "relax.concat"):
        return [(twins[var], relax.op.concat(sources, axis=1))]
    if value.op.name in POOLS:
        attrs, layout = value.attrs, f"NCHW{layouts.channels}c"
        window = (attrs.pool_size, attrs.strides, attrs.padding, attrs.dilation, attrs.ceil_mode)
        pool = POOLS[value.op.name]
        return [(twins[var], pool(*sources, *window, attrs.count_include_pad, layout, layout))]
    before: Bindings = []
    arguments = [twins[each] if each in set(kept.reads) else each for each in value.args]
    for index, each in enumerate(value.args):
        if each not in set(kept.reads) and math.prod(static_shape(each) or ()) > 1:
            steps = _vector(module, var, each, layouts)
            before += steps
            arguments[index] = steps[-1][0]
    return [*before, (twins[var], relax.Call(value.op, arguments, value.attrs, value.ty_args))]


def _mean(module: tvm.IRModule, var: Var, source: Var, layouts: Layouts) -> Bindings:
    """`var` as the mean over the pixels of each channel that there is."""
    shape = static_shape(var) or ()
    n, blocks, *_ = static_shape(source) or ()
    filled = (n, blocks * layouts.channels, *shape[2:])
    mean = new_var(module, var, f"{var.name}_blocks", (n, blocks, 1, 1, layouts.channels))
    steps: Bindings = [(mean, relax.op.mean(source, _PIXELS, keepdims=True))]
    if filled == shape:
        return [*steps, (var, view(mean, shape))]
    flat = new_var(module, var, f"{var.name}_filled", filled)
    return [*steps, (flat, view(mean, filled)), (var, relax.op.strided_slice(flat, [1], [0], [shape[1]]))]


def _vector(module: tvm.IRModule, var: Var, value: Expr, layouts: Layouts) -> Bindings:
    """A number for each channel, as that of a tensor in blocks; the last step's variable has it."""
    n, c, *_ = _of_all_axes(static_shape(value) or ())
    blocks = layouts.shape("x", (n, c, 1, 1))
    vector = new_var(module, var, f"{var.name}_vector", blocks)
    if isinstance(value, GenericConst):
        # Not zeros, by which what nothing reads would be divided.
        array = np.pad(value.value.numpy().reshape(n, c), [(0, 0), (0, layouts.filled(c) - c)], constant_values=1)
        return [(vector, relax.const(array.reshape(blocks)))]
    if layouts.filled(c) == c:
        return [(vector, view(value, blocks))]
    filled = new_var(module, var, f"{var.name}_filled", (n, layouts.filled(c), 1, 1))
    padding = relax.op.nn.pad(value, [0, 0, 0, layouts.filled(c) - c, 0, 0, 0, 0])
    return [(filled, padding), (vector, view(filled, blocks))]
