"""Rewrites torch programs that PT2E has quantised into layers on integers, as `frontend/onnx/quantised` does of ONNX's.

A quantised tensor is kept less its zero point, in float32; scales come behind layers, and rounding and clipping behind
them. A bias, which PT2E leaves in floats, is divided by the scale of the sums it is added to.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx.traceback import preserve_node_meta
from torch.utils import _pytree as pytree

from tvm_sparse.frontend.scales import LayerScales
from tvm_sparse.frontend.torch.graph import is_quantising
from tvm_sparse.frontend.torch.rewriting.half import exported_again

_PREFIX = "quantized_decomposed."
_LAYERS = ("conv1d.default", "conv2d.default", "conv3d.default", "linear.default")
# Operators each of whose results is one of the numbers of the input, or the largest of several.
# fmt: off
_MOVING = (
    "clone.default", "contiguous.default", "expand.default", "flatten.using_ints", "max_pool2d.default",
    "permute.default", "pixel_shuffle.default", "reshape.default", "select.int", "slice.Tensor", "squeeze.dim",
    "transpose.int", "unsqueeze.default", "upsample_nearest2d.vec", "view.default",
)
# fmt: on


def in_floats(where: str, program: Any, in_integers: bool) -> tuple[Any, dict[str, LayerScales]]:
    """A float32 program that computes what a quantised `torch.export.ExportedProgram` does, on integers if so.

    Weights of layers are integers named after the modules that they had been of, and so are the layers' scales.
    ModelError where torch cannot export it.
    """
    if any(getattr(getattr(node.target, "_schema", None), "is_mutable", False) for node in program.graph.nodes):
        # Of what is changed in place, integers would be read as they were before.
        program = program.run_decompositions({})
    with preserve_node_meta():
        integers = _Integers(program.module(check_guards=False), in_integers)
        module = integers.transform()
    return exported_again(where, program, module, lambda value: value), integers.layers


@dataclass(frozen=True)
class _Fixed:
    """A parameter or buffer."""

    target: str
    value: torch.Tensor


@dataclass(frozen=True)
class _Constant:
    """A constant as ``(codes - zeros) * scales``, as `integers` and `scales` are, and its own float value.

    Scales are along `axis` if there are several.
    """

    integers: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor
    axis: int
    value: torch.Tensor


@dataclass(frozen=True)
class _Scaled:
    """A float tensor as ``integers * scale``, the latter a number, or a tensor that broadcasts.

    `zero` is the zero point of a quantised one.
    """

    integers: Any
    scale: float | torch.Tensor
    zero: int | None = None


@dataclass(frozen=True)
class _Centred:
    """A quantised tensor as ``integers + zero``, of a type."""

    integers: Any
    zero: int
    dtype: torch.dtype


class _Integers(torch.fx.Transformer):
    def __init__(self, module: Any, in_integers: bool):
        super().__init__(module)
        self._node: Any = None
        self._in_integers = in_integers
        self._named: dict[str, torch.Tensor] = {}
        self.layers: dict[str, LayerScales] = {}
        self._rewrites: dict[str, Callable[..., Any]] = {
            f"{_PREFIX}quantize_per_tensor.default": self._quantise,
            f"{_PREFIX}dequantize_per_tensor.default": self._dequantise,
            f"{_PREFIX}quantize_per_channel.default": self._quantise_constant,
            f"{_PREFIX}dequantize_per_channel.default": self._dequantise_channels,
            **dict.fromkeys(_LAYERS, self._layer),
        }
        if in_integers:
            self._rewrites |= {"relu.default": self._relu, **dict.fromkeys(_MOVING, self._move)}

    def run_node(self, n: Any) -> Any:
        self._node = n
        return super().run_node(n)

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        value = self.fetch_attr(target)
        return _Fixed(target, value) if isinstance(value, torch.Tensor) else super().get_attr(target, args, kwargs)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        rewrite = self._rewrites.get(str(target).removeprefix("aten."))
        result = rewrite(*args, **kwargs) if rewrite is not None else None
        return self._add(target, *args, **kwargs) if result is None else result

    def output(self, target: Any, args: Any, kwargs: Any) -> Any:
        return super().output(target, pytree.tree_map(self._plain, args), kwargs)

    def _add(self, target: Any, *args: Any, **kwargs: Any) -> Any:
        """A node of an operator, of ATen where it is given by name."""
        if isinstance(target, str):
            name, overload = target.split(".")
            target = getattr(getattr(torch.ops.aten, name), overload)
        args, kwargs = pytree.tree_map(self._plain, (args, kwargs))
        return self.tracer.create_proxy("call_function", target, args, kwargs)

    def _plain(self, value: Any) -> Any:
        """What stands for a tensor in the new graph."""
        match value:
            case _Fixed():
                return super().get_attr(value.target, (), {})
            case _Constant():
                return self._kept(value.value)
            case torch.Tensor():
                return self._kept(value)
            case _Scaled():
                kind = "Tensor" if isinstance(value.scale, torch.Tensor) else "Scalar"
                return self._add(f"mul.{kind}", value.integers, value.scale)
            case _Centred():
                return self._add("to.dtype", self._add("add.Scalar", value.integers, value.zero), value.dtype)
        return value

    def _kept(self, value: torch.Tensor, path: str = "", name: str = "") -> Any:
        """A tensor as a buffer: of the module at `path` in the place of one that nothing else reads, or a new one."""
        held = self.module
        target = f"{path}.{name}" if path else name
        nodes = [node for node in self.module.graph.nodes if node.op == "get_attr" and node.target == target]
        is_ours = torch.equal(self._named.get(target, value), value)
        if not name or not is_ours or not all(is_quantising(user) for node in nodes for user in node.users):
            target = path = ""
        for part in filter(None, path.split(".")):
            if part not in held._modules:
                held.add_module(part, torch.nn.Module())
            held = held._modules[part]
        if not target:
            target = name = f"_constant{len(self.module._buffers)}"
        if hasattr(held, name):
            delattr(held, name)
        held.register_buffer(name, value)
        self._named[target] = value
        return super().get_attr(target, (), {})

    def _quantise(self, x: Any, scale: float, zero: int, least: int, most: int, dtype: torch.dtype) -> Any:
        if isinstance(x, _Fixed):
            return self._quantise_constant(x, scale, zero, least, most, dtype)
        known = isinstance(x, _Scaled)
        factor = x.scale / scale if known else 1 / scale
        codes = x.integers if known else x
        if not isinstance(factor, float) or factor != 1:
            codes = self._add("mul.Tensor" if isinstance(factor, torch.Tensor) else "mul.Scalar", codes, factor)
        clipped = self._add("clamp.default", self._add("round.default", codes), least - zero, most - zero)
        return _Centred(clipped, zero, dtype)

    def _quantise_constant(self, x: Any, *numbers: Any) -> Any:
        found = [each.value if isinstance(each, _Fixed) else each for each in (x, *numbers)]
        is_constant = isinstance(x, _Fixed) and all(map(_is_known, found))
        return _Fixed("", self._node.target(*found)) if is_constant else None

    def _dequantise(self, x: Any, scale: float, zero: int, *rest: Any, **options: Any) -> Any:
        if isinstance(x, _Fixed):
            scales, zeros = torch.tensor(scale, dtype=torch.float32), torch.tensor(zero)
            return self._constant(x, scales, zeros, 0, (scale, zero, *rest), options)
        if isinstance(x, _Centred) and x.zero == zero:
            return _Scaled(x.integers, scale, zero)
        return _Scaled(self._add("sub.Scalar", self._add("to.dtype", x, torch.float32), zero), scale, zero)

    def _dequantise_channels(self, x: Any, scales: Any, zeros: Any, axis: int, *rest: Any, **options: Any) -> Any:
        if not all(isinstance(each, _Fixed) for each in (x, scales, zeros)):
            return None
        return self._constant(
            x, scales.value.float(), zeros.value, axis, (scales.value, zeros.value, axis, *rest), options
        )

    def _constant(self, x: _Fixed, scales: Any, zeros: Any, axis: int, args: Any, options: Any) -> _Constant:
        shape = [-1 if each == axis else 1 for each in range(x.value.ndim)] if scales.ndim else []
        integers = x.value.to(torch.float32) - zeros.to(torch.float32).reshape(shape)
        return _Constant(integers, scales, zeros, axis, self._node.target(x.value, *args, **options))

    def _relu(self, x: Any) -> Any:
        positive = isinstance(x, _Scaled) and torch.as_tensor(x.scale).gt(0).all()
        return _Scaled(self._add("relu.default", x.integers), x.scale) if positive else None

    def _move(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(x, _Scaled) or isinstance(x.scale, torch.Tensor) or x.scale <= 0:
            return None
        return _Scaled(self._add(self._node.target, x.integers, *args, **kwargs), x.scale, x.zero)

    def _layer(self, x: Any, weight: Any, bias: Any = None, *rest: Any, **options: Any) -> Any:
        if not isinstance(weight, _Constant):
            return None
        path, layer = _owner_path(self._node), self._node.target
        steps = self._steps(x, weight, bias)
        if steps is None:
            return self._add(layer, x, self._kept(weight.value, path, "weight"), bias, *rest, **options)
        if x.zero is not None and path:
            of_weight = (weight.scales.numpy(), weight.zeros.numpy())
            self.layers[path] = LayerScales(x.zero, float(x.scale), of_weight)
        bias = bias and (bias.value.double() / steps.double()).float()
        sums = self._add(layer, x.integers, self._kept(weight.integers, path, "weight"), bias, *rest, **options)
        shape = [-1, *[1] * (weight.integers.ndim - 2)] if steps.ndim else []
        return _Scaled(sums, steps.reshape(shape) if steps.ndim else float(steps))

    def _steps(self, x: Any, weight: _Constant, bias: Any) -> torch.Tensor | None:
        """The scale of a layer's sums of integers, one or one a filter; None where it is no layer on integers."""
        if not self._in_integers or not isinstance(x, _Scaled) or isinstance(x.scale, torch.Tensor) or weight.axis:
            return None
        steps = (weight.scales.double() * x.scale).float()
        is_usable = bool(((steps > 0) & steps.isfinite()).all())
        return steps if is_usable and isinstance(bias, _Fixed | _Constant | None) else None


def _is_known(value: Any) -> bool:
    return isinstance(value, torch.Tensor | torch.dtype | int) or (isinstance(value, float) and math.isfinite(value))


def _owner_path(node: Any) -> str:
    """The module that a layer was of, as its parameters are called."""
    return next((path for path, _ in reversed((node.meta.get("nn_module_stack") or {}).values())), "")
