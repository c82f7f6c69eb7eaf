"""Layers between DequantizeLinear and QuantizeLinear as layers on integers, which float32 kernels compute exactly.

A quantised tensor is kept less its zero point, in float32. What a layer sums are integers then, exact below 2**24, and
a weight at its zero point is zero. Scales come behind the layer, and rounding and clipping behind them.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np

from tvm_sparse.conv.codes import holds_codes
from tvm_sparse.frontend.onnx.quantised.operators import as_type
from tvm_sparse.frontend.onnx.rewriting.replace_nodes import Replacement, Rewrite
from tvm_sparse.frontend.optional_imports import onnx
from tvm_sparse.frontend.scales import LayerScales

_LAYERS = ("Conv", "Gemm", "MatMul")
# Operators each of whose results is one of the numbers of the first input, or the largest of several.
# fmt: off
_MOVING = (
    "DepthToSpace", "Expand", "Flatten", "Gather", "Identity", "MaxPool", "Reshape", "Slice", "SpaceToDepth", "Squeeze",
    "Tile", "Transpose", "Unsqueeze",
)
# fmt: on
# Operators whose results are in proportion to the first input; of integers they are exact until they are divided.
_MEANS = ("AveragePool", "GlobalAveragePool", "ReduceMean")
# Of the scale of a bias to that of the sums it is added to: they are computed in other orders.
_SAME = 1e-6
_ONE = np.ones((), np.float32)


@dataclass(frozen=True)
class _Scaled:
    """A float tensor as ``integers * scale``, the latter a number, or one a channel in the shape that broadcasts.

    `zeros` are its zero points, where it is a quantised one. Means are no whole numbers.
    """

    integers: str
    scale: np.ndarray
    zeros: np.ndarray | None = None
    is_whole: bool = True


@dataclass(frozen=True)
class _Constant:
    """A constant as ``(codes - zeros) * scales``, of `rank` axes, with the axis along which there are several."""

    codes: str
    zeros: np.ndarray
    scales: np.ndarray
    rank: int
    axis: int


class Integers:
    """The rewrites of nodes, in their order, and what is known of tensors by then.

    Those of `with_zero` are rounded with their zero point, so that of two codes as near the even one is taken.
    """

    def __init__(self, with_zero: Collection[str] = ()) -> None:
        self._with_zero = with_zero
        self._scaled: dict[str, _Scaled] = {}
        self._constants: dict[str, _Constant] = {}
        # Of quantised tensors: the integers less their zero point, and that.
        self._centred: dict[str, tuple[str, np.ndarray]] = {}
        # The same of codes in float32, as layers on integers centre them, and sums in int32 as float32.
        self._codes: dict[str, tuple[str, np.ndarray]] = {}
        self._sums: dict[str, str] = {}
        # By the names of nodes.
        self.layers: dict[str, LayerScales] = {}
        self.rewrites: dict[str, Rewrite] = {
            "QuantizeLinear": self._quantise,
            "DequantizeLinear": self._dequantise,
            "Cast": self._cast,
            "Sub": self._centre,
            "Add": self._add_to_sums,
            "Mul": self._scale_sums,
            "Relu": self._relu,
            **dict.fromkeys(_LAYERS, self._layer),
            **dict.fromkeys(_MOVING, self._move),
            **dict.fromkeys(_MEANS, self._mean),
        }

    def _quantise(self, to: Replacement) -> str | None:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(to.attributes.get("output_dtype") or onnx.TensorProto.UINT8)
        scale, zero = to.array(to.input(1)), to.array(to.input(2)) if to.input(2) else np.zeros((), dtype)
        if scale is None or scale.size > 1 or scale.dtype != np.float32 or not _is_in_float32(to, "precision"):
            return None
        if zero is None or zero.dtype.kind not in "iu":
            return None
        scale, zero, known = scale.reshape(()), zero.reshape(()), self._scaled.get(to.input(0))
        if known is None:
            code = to.add("Round", to.add("Div", to.input(0), to.constant(scale)))
        else:
            code = _times(to, known.integers, known.scale / scale)
            if to.node.output[0] in self._with_zero and int(zero) % 2:
                # An even code is an odd number less an odd zero point.
                one = to.constant(np.float32(1))
                code = to.add("Sub", to.add("Round", to.add("Add", code, one)), one)
            elif code != known.integers or not known.is_whole:
                code = to.add("Round", code)
        limits = np.iinfo(zero.dtype)
        bounds = [to.constant(np.float32(limit - int(zero))) for limit in (limits.min, limits.max)]
        return self._as_centred(to, to.add("Clip", code, *bounds), zero)

    def _dequantise(self, to: Replacement) -> str | None:
        codes, scales = to.array(to.input(0)), to.array(to.input(1))
        zeros = to.array(to.input(2)) if to.input(2) else np.zeros((), np.int8)
        is_plain = not to.attributes.get("block_size") and _is_in_float32(to, "output_dtype")
        if not is_plain or scales is None or zeros is None or scales.dtype != np.float32:
            return None
        if codes is not None:
            axis = to.attributes.get("axis", 1) % max(codes.ndim, 1)
            self._constants[to.node.output[0]] = _Constant(to.input(0), zeros, scales, codes.ndim, axis)
            return None
        if scales.size > 1 or zeros.size > 1:
            return None
        centred, zero = self._centred.get(to.input(0), ("", zeros))
        if not centred or int(zero) != zeros.item():
            centred = to.add("Sub", as_type(to, to.input(0), np.float32), to.constant(np.float32(zeros.item())))
        return self._as_scaled(to, centred, scales.reshape(()), zeros.reshape(()))

    def _cast(self, to: Replacement) -> str | None:
        """Codes on their way to a layer on integers, and its sums, which are integers in float32 too."""
        name, output, dtype = to.input(0), to.node.output[0], to.dtype(to.node.output[0])
        scaled = self._scaled.get(name)
        if name in self._centred and dtype == np.float32:
            centred, zero = self._codes[output] = self._centred[name]
            return None if zero else self._as_scaled(to, centred, _ONE, zero)
        if name in self._sums and dtype == np.float32:
            return self._as_scaled(to, self._sums[name], _ONE)
        if scaled is not None and scaled.is_whole and dtype == np.int32 and (scaled.scale == 1).all():
            self._sums[output] = scaled.integers
        return None

    def _centre(self, to: Replacement) -> str | None:
        (centred, zero), other = self._codes.get(to.input(0), ("", _ONE)), to.array(to.input(1))
        is_zero = other is not None and other.size == 1 and other.item() == zero.item()
        return self._as_scaled(to, centred, _ONE, zero) if centred and is_zero else None

    def _add_to_sums(self, to: Replacement) -> str | None:
        """A bias in int32."""
        sums, bias = next(((name, to.array(other)) for name, other in _pairs(to) if name in self._sums), ("", None))
        if bias is None:
            return None
        self._sums[to.node.output[0]] = to.add("Add", self._sums[sums], to.constant(bias.astype(np.float32)))
        return to.add("Add", *to.node.input)

    def _scale_sums(self, to: Replacement) -> str | None:
        """The scale behind a layer on integers: a number, or one a channel."""
        for name, other in _pairs(to):
            known, scale = self._scaled.get(name), to.array(other)
            if known is None or scale is None or scale.dtype != np.float32 or known.scale.ndim or known.scale != 1:
                continue
            channels = [size for size in scale.shape if size > 1]
            if len(channels) <= 1:
                behind = scale.shape[scale.shape.index(channels[0]) :] if channels else ()
                return self._as_scaled(to, known.integers, scale.reshape(behind), is_whole=known.is_whole)
        return None

    def _relu(self, to: Replacement) -> str | None:
        known = self._scaled.get(to.input(0))
        if known is None or not (known.scale > 0).all():
            return None
        return self._as_scaled(to, to.add("Relu", known.integers), known.scale, is_whole=known.is_whole)

    def _move(self, to: Replacement) -> str | None:
        name, others, operator = to.input(0), to.node.input[1:], to.node.op_type
        constant, known = self._constants.get(name), self._scaled.get(name)
        if len(to.node.output) > 1:
            return None
        if name in self._centred:
            centred, zero = self._centred[name]
            return self._as_centred(to, to.add(operator, centred, *others, **to.attributes), zero)
        if known is not None and known.scale.ndim == 0 and known.scale > 0:
            moved = to.add(operator, known.integers, *others, **to.attributes)
            return self._as_scaled(to, moved, known.scale, known.zeros, known.is_whole)
        if constant is not None and operator == "Transpose":
            axes = to.attributes.get("perm", list(range(constant.rank))[::-1])
            codes = to.add(operator, constant.codes, **to.attributes)
            self._constants[to.node.output[0]] = replace(constant, codes=codes, axis=axes.index(constant.axis))
            return to.add(operator, name, **to.attributes)
        return None

    def _mean(self, to: Replacement) -> str | None:
        known = self._scaled.get(to.input(0))
        if known is None or known.scale.ndim:
            return None
        means = to.add(to.node.op_type, known.integers, *to.node.input[1:], **to.attributes)
        return self._as_scaled(to, means, known.scale, is_whole=False)

    def _layer(self, to: Replacement) -> str | None:
        data, weight = self._scaled.get(to.input(0)), self._weight(to)
        if data is None or data.scale.ndim or weight is None or to.attributes.get("beta", 1) != 1:
            return None
        scale = data.scale * weight.scale * np.float32(to.attributes.get("alpha", 1))
        bias = self._integer_bias(to, scale)
        attributes = {name: value for name, value in to.attributes.items() if name not in ("alpha", "beta")}
        sums = to.add(to.node.op_type, *filter(None, [data.integers, weight.integers, bias]), **attributes)
        to.nodes[-1].name = to.node.name or sums
        if data.zeros is not None:
            of_weight = (weight.scale, weight.zeros) if weight.zeros is not None else None
            of_input = float(data.scale) if of_weight is not None else None
            self.layers[to.nodes[-1].name] = LayerScales(int(data.zeros), of_input, of_weight)
        if bias or not to.input(2):
            return self._as_scaled(to, sums, scale, is_whole=data.is_whole and weight.is_whole)
        shift = to.input(2)
        if to.node.op_type == "Conv":
            shift = to.reshape(shift, [-1, *[1] * (self._constants[to.input(1)].rank - 2)])
        return to.add("Add", _times(to, sums, scale), shift)

    def _weight(self, to: Replacement) -> _Scaled | None:
        """The second input of a layer; None where its scales are not those of its outputs."""
        operator, known = to.node.op_type, self._constants.get(to.input(1))
        weight = to.array(to.input(1))
        if weight is not None and weight.dtype == np.float32 and holds_codes(weight):
            return _Scaled(to.input(1), _ONE)
        if known is None:
            other = self._scaled.get(to.input(1))
            return other if operator == "MatMul" and other is not None and other.scale.ndim == 0 else None
        outputs = 0 if operator == "Conv" or to.attributes.get("transB") else known.rank - 1
        # All numbers of a vector are summed.
        if max(known.scales.size, known.zeros.size) > 1 and (known.axis != outputs or known.rank == 1):
            return None
        integers = as_type(to, known.codes, np.float32)
        if known.zeros.any():
            zeros = known.zeros.astype(np.float32).reshape([-1, *[1] * (known.rank - 1 - outputs)])
            integers = to.add("Sub", integers, to.constant(zeros))
        behind = [1] * (known.rank - 2) if operator == "Conv" else []
        return _Scaled(integers, known.scales.reshape([-1, *behind] if known.scales.size > 1 else []), known.zeros)

    def _integer_bias(self, to: Replacement, scale: np.ndarray) -> str:
        """The third input of a layer in steps of `scale`; empty where it is in others, or there is none."""
        known = self._constants.get(to.input(2))
        if known is None or known.zeros.any() or known.scales.size not in (1, scale.size):
            return ""
        return (
            as_type(to, known.codes, np.float32) if np.allclose(known.scales.ravel(), scale.ravel(), _SAME, 0) else ""
        )

    def _as_scaled(
        self,
        to: Replacement,
        integers: str,
        scale: np.ndarray,
        zeros: np.ndarray | None = None,
        is_whole: bool = True,
    ) -> str:
        """The result ``integers * scale`` of a node, which is noted."""
        self._scaled[to.node.output[0]] = _Scaled(integers, scale, zeros, is_whole)
        result = _times(to, integers, scale)
        # The node of the result takes another name.
        return to.add("Identity", integers) if result == integers else result

    def _as_centred(self, to: Replacement, centred: str, zero: np.ndarray) -> str:
        """The result ``centred + zero`` of a node, which is noted, in the type of `zero`."""
        self._centred[to.node.output[0]] = centred, zero
        return as_type(to, to.add("Add", centred, to.constant(np.float32(zero))), zero.dtype)


def _is_in_float32(to: Replacement, attribute: str) -> bool:
    """Whether a type that later operator sets can ask for is left out, or float32."""
    return to.attributes.get(attribute, 0) in (0, onnx.TensorProto.FLOAT)


def _pairs(to: Replacement) -> tuple[tuple[str, str], tuple[str, str]]:
    """Either input of a node, and the other."""
    return (to.input(0), to.input(1)), (to.input(1), to.input(0))


def _times(to: Replacement, integers: str, scale: np.ndarray) -> str:
    return integers if (scale == 1).all() else to.add("Mul", integers, to.constant(scale.astype(np.float32)))
