"""An ONNX file as a torch module whose weights can be trained, and written back into the file."""

from collections.abc import Callable
from itertools import chain
from typing import Any

import onnx
import torch
from onnx import helper, numpy_helper
from torch import nn
from torch.nn import functional

# Constants of fewer values are part of a formula, such as the 3 and the 6 of hard-swish, and are not trained.
LEAST_TRAINED = 16


def _clip(x: Any, low: Any, high: Any) -> Any:
    return x.clamp(low, high)


def _slice(x: Any, starts: list[int], ends: list[int], axes: list[int], *_steps: Any) -> Any:
    """Of a shape, or of a tensor along one axis."""
    if isinstance(x, list):
        return x[starts[0] : ends[0]]
    return x.narrow(axes[0], starts[0], ends[0] - starts[0])


def _concat(*parts: Any, axis: int) -> Any:
    return list(chain(*parts)) if isinstance(parts[0], list) else torch.cat(parts, axis)


def _reshape(x: Any, shape: list[int]) -> Any:
    return x.reshape([x.shape[at] if size == 0 else size for at, size in enumerate(shape)])


def _normalise(x: Any, scale: Any, bias: Any, mean: Any, variance: Any, epsilon: float, **_: Any) -> Any:
    return functional.batch_norm(x, mean, variance, scale, bias, eps=epsilon)


# Operators of the networks studied here. Shapes are lists of integers, all else tensors.
OPERATORS: dict[str, Callable[..., Any]] = {
    "Add": torch.add,
    "AveragePool": lambda x, kernel_shape, strides, **_: functional.avg_pool2d(x, kernel_shape, strides),
    "BatchNormalization": _normalise,
    "Cast": lambda x, to: x,
    "Clip": _clip,
    "Concat": _concat,
    "Div": torch.div,
    "GlobalAveragePool": lambda x: x.mean((2, 3), keepdim=True),
    "HardSigmoid": lambda x, alpha=0.2, beta=0.5: (x * alpha + beta).clamp(0, 1),
    "MatMul": torch.matmul,
    "Mul": torch.mul,
    "Pow": torch.pow,
    "ReduceMean": lambda x, axes, keepdims=1: x.mean(axes, keepdim=bool(keepdims)),
    "Relu": torch.relu,
    "Reshape": _reshape,
    "Shape": lambda x: list(x.shape),
    "Sigmoid": torch.sigmoid,
    "Slice": _slice,
    "Softmax": torch.softmax,
    "Sqrt": torch.sqrt,
    "Squeeze": lambda x, axes: x.squeeze(*axes),
    "Sub": torch.sub,
    "Transpose": lambda x, perm: x.permute(perm),
}


class OnnxModule(nn.Module):
    """A graph of one input whose weights are `Constant` nodes.

    Convolutions and products with a constant matrix become `nn.Conv2d` and `nn.Linear` in `layers`, which
    `tvm_sparse.prune` knows; other constants of some size are parameters too.
    """

    def __init__(self, model: onnx.ModelProto):
        super().__init__()
        self.layers, self.vectors = nn.ModuleDict(), nn.ParameterDict()
        self._input = model.graph.input[0].name
        # Of the trained: constant in the file -> key in `layers` or `vectors`.
        self._keys: dict[str, str] = {}
        self._constants: dict[str, Any] = {}
        self._steps: list[tuple[str, str, list[str], str, dict[str, Any]]] = []
        statistics = {
            name for each in model.graph.node if each.op_type == "BatchNormalization" for name in each.input[3:]
        }
        for node in model.graph.node:
            attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
            if node.op_type == "Constant":
                self._constant(node.output[0], numpy_helper.to_array(attributes["value"]), node.output[0] in statistics)
                continue
            weight = self._constants.get(node.input[1]) if node.op_type in ("Conv", "MatMul") else None
            key = "" if weight is None else self._layer(node, weight, attributes)
            self._steps.append((node.op_type, key, list(node.input), node.output[0], attributes))

    def _constant(self, name: str, value: Any, is_fixed: bool) -> None:
        if value.dtype.kind == "i":
            self._constants[name] = value.ravel().tolist()
            return
        self._constants[name] = tensor = torch.tensor(value)
        if tensor.ndim == 1 and tensor.numel() >= LEAST_TRAINED and not is_fixed:
            self._keys[name] = key = f"v{len(self.vectors)}"
            self.vectors[key] = nn.Parameter(tensor)

    def _layer(self, node: onnx.NodeProto, weight: torch.Tensor, attributes: dict[str, Any]) -> str:
        key = f"l{len(self.layers)}"
        if node.op_type == "MatMul":
            layer: Any = nn.Linear(*weight.shape, bias=False)
            layer.weight = nn.Parameter(weight.T.contiguous())
        else:
            groups, (k, c, *taps) = attributes["group"], weight.shape
            padding = attributes["pads"][:2]
            layer = nn.Conv2d(c * groups, k, taps, attributes["strides"], padding, groups=groups, bias=False)
            layer.weight = nn.Parameter(weight)
        self.layers[key] = layer
        self._keys[node.input[1]] = key
        return key

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        """What every layer gives, in order; of the last one with its bias, before softmax."""
        values: dict[str, Any] = dict(self._constants)
        values |= {name: self.vectors[key] for name, key in self._keys.items() if key in self.vectors}
        values[self._input] = x
        given = []
        for operator, key, inputs, output, attributes in self._steps:
            if key:
                made = self.layers[key](values[inputs[0]])
                bias = values[inputs[2]] if len(inputs) > 2 else None
                values[output] = made if bias is None else made + bias[:, None, None]
                given.append(values[output])
            else:
                values[output] = OPERATORS[operator](*(values[each] for each in inputs), **attributes)
        return [*given[:-1], values[self._steps[-1][2][0]]]

    def write(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """The model with the weights as they are now."""
        written = onnx.ModelProto.FromString(model.SerializeToString())
        for node in written.graph.node:
            key = self._keys.get(node.output[0]) if node.op_type == "Constant" else None
            if key is not None:
                tensor = self.vectors[key] if key in self.vectors else self.layers[key].weight
                is_matrix = key in self.layers and isinstance(self.layers[key], nn.Linear)
                array = (tensor.T if is_matrix else tensor).detach().contiguous().numpy()
                node.attribute[0].t.CopyFrom(numpy_helper.from_array(array))
        return written
