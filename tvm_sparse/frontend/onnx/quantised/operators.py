"""Quantised operators, ONNX's and ONNX Runtime's own, as float operators between DequantizeLinear and QuantizeLinear.

That is what they are defined as. Those of ONNX that give int32 sums are written as float layers of integers.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from tvm_sparse.conv.codes import CODES
from tvm_sparse.errors import ModelError
from tvm_sparse.frontend.onnx.rewriting.replace_nodes import Replacement, Rewrite, operator_of
from tvm_sparse.frontend.optional_imports import onnx

_QUANTISING = ("QuantizeLinear", "DequantizeLinear")
# From here on Softmax is of one axis; before, of all behind it too.
_SOFTMAX_OPSET = 13


def is_quantising(node: Any) -> bool:
    """Whether a node reads or writes numbers of eight bits."""
    return operator_of(node) in (*EXPANSIONS, *_QUANTISING)


def _float(to: Replacement, at: int, axis: int | None = None) -> str:
    """The float form of input `at`, behind which are its scale and zero point, along `axis` if there are several."""
    names = [to.input(at), to.input(at + 1), to.input(at + 2)]
    return to.add("DequantizeLinear", *filter(None, names), **({} if axis is None else {"axis": axis}))


def _rounded(to: Replacement, result: str, at: int) -> str:
    """`result` in the form of which input `at` is the scale and the one behind it the zero point."""
    zero = to.input(at + 1) or to.constant(np.uint8(0))
    return to.add("QuantizeLinear", result, to.input(at), zero)


def _layer(to: Replacement, operator: str, *inputs: str, **attributes: Any) -> str:
    """A layer, which keeps the name of the node."""
    result = to.add(operator, *inputs, **attributes)
    to.nodes[-1].name = to.node.name or result
    return result


def _sums(to: Replacement, at: int, factor: float = 1.0) -> str:
    """The float form of the bias at input `at`, in int32 of the product of the first two scales, times `factor`."""
    scale = to.add("Mul", to.add("Mul", to.input(1), to.input(4)), to.constant(np.float32(factor)))
    return to.add("DequantizeLinear", to.input(at), scale, axis=0)


def _convolution(to: Replacement) -> str:
    """QLinearConv: x, w, the scale of y, and a bias."""
    _require_nchw(to)
    bias = [_sums(to, 8)] if to.input(8) else []
    return _rounded(to, _layer(to, "Conv", _float(to, 0), _float(to, 3, 0), *bias, **_without(to, "channels_last")), 6)


def _product(to: Replacement) -> str:
    """QLinearMatMul; several scales are those of rows of the first and columns of the second."""
    return _rounded(to, _layer(to, "MatMul", _float(to, 0, -2), _float(to, 3, -1)), 6)


def _gemm(to: Replacement) -> str:
    """ONNX Runtime's QGemm, whose result is a float where it has no scale."""
    factor, columns = to.attributes.get("alpha", 1.0), 0 if to.attributes.get("transB", 0) else 1
    bias = [_sums(to, 6, factor)] if to.input(6) else []
    result = _layer(to, "Gemm", _float(to, 0), _float(to, 3, columns), *bias, **to.attributes)
    return _rounded(to, result, 7) if to.input(7) else result


def _one_by_one(operator: str, inputs: int, to: Replacement) -> str:
    """An operator on so many tensors, each with scale and zero point, those of the result behind them."""
    _require_nchw(to)
    attributes = _without(to, "channels_last", "opset")
    return _rounded(to, to.add(operator, *(_float(to, 3 * at) for at in range(inputs)), **attributes), 3 * inputs)


def _softmax(to: Replacement) -> str:
    if to.attributes.get("opset", to.opset) < _SOFTMAX_OPSET <= to.opset:
        raise ModelError(
            to.where, "its Softmax is of an older opset", to.attributes["opset"], "13", "quantise it again"
        )
    return _one_by_one("Softmax", 1, to)


def _concatenation(to: Replacement) -> str:
    """The scale of the result comes first."""
    parts = [_float(to, at) for at in range(2, len(to.node.input), 3)]
    return _rounded(to, to.add("Concat", *parts, **to.attributes), 0)


def _choice(to: Replacement) -> str:
    return _rounded(to, to.add("Where", to.input(0), _float(to, 1), _float(to, 4)), 7)


def _centred(to: Replacement, data: str, zero: str, shape: Sequence[int]) -> str:
    """A tensor less its zero point, which has `shape` where it is several, in float32."""
    number = as_type(to, data, np.float32)
    if not zero:
        return number
    zeros = as_type(to, zero, np.float32)
    # Those of more axes broadcast as they are.
    return to.add("Sub", number, zeros if len(to.shape(zero)) > 1 else to.reshape(zeros, shape))


def as_type(to: Replacement, name: str, dtype: Any) -> str:
    """Add a Cast."""
    return to.add("Cast", name, to=onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def _integer_sums(to: Replacement, operator: str, rows: Sequence[int], columns: Sequence[int]) -> str:
    """Sums whose type is int32: ONNX lets them overflow, and floats do not wrap, so those that can are refused."""
    most = _most_sum(to, operator, columns)
    if most > np.iinfo(np.int32).max:
        raise ModelError(to.where, "its sums can pass int32", most, "2147483647", "split what it sums in two nodes")
    parts = [_centred(to, to.input(0), to.input(2), rows), _centred(to, to.input(1), to.input(3), columns)]
    sums = _layer(to, operator, *parts, **to.attributes)
    return as_type(to, sums, np.int32)


def _most_sum(to: Replacement, operator: str, columns: Sequence[int]) -> int:
    """No sum of the node is larger, whatever its input is."""
    weight, zero = to.array(to.input(1)), to.array(to.input(3)) if to.input(3) else np.zeros((), np.int8)
    if weight is None or zero is None:
        return to.shape(to.input(0))[-1] * (CODES - 1) ** 2
    zeros = zero.astype(np.int64).reshape(columns) if zero.ndim == 1 else zero.astype(np.int64)
    sizes = np.abs(weight.astype(np.int64) - zeros)
    axes = tuple(range(1, weight.ndim)) if operator == "Conv" else max(weight.ndim - 2, 0)
    return int(sizes.sum(axis=axes).max(initial=0)) * (CODES - 1)


def _integer_convolution(to: Replacement) -> str:
    weight = to.array_of_input(1, "w")
    return _integer_sums(to, "Conv", [1], [-1, *[1] * (weight.ndim - 1)])


def _integer_product(to: Replacement) -> str:
    return _integer_sums(to, "MatMul", [-1, 1], [-1])


def _scaled_product(to: Replacement) -> str:
    """ONNX Runtime's MatMulIntegerToFloat: a, b, their scales, their zero points, a bias."""
    parts = [to.add("Mul", _centred(to, to.input(at), to.input(4 + at), [-1]), to.input(2 + at)) for at in range(2)]
    return _with_bias(to, _layer(to, "MatMul", *parts), 6)


def _dynamic_product(to: Replacement) -> str:
    """ONNX Runtime's DynamicQuantizeMatMul: a in float32, b, its scale and zero point, a bias."""
    codes, scale, zero = _dynamic(to)
    integers = [to.add("Sub", codes, zero), _centred(to, to.input(1), to.input(3), [-1])]
    sums = _layer(to, "MatMul", *integers)
    return _with_bias(to, to.add("Mul", sums, to.add("Mul", scale, to.input(2))), 4)


def _dynamic(to: Replacement) -> tuple[str, str, str]:
    """The codes of the first input, between its extremes, in float32, and their scale and zero point."""
    data, none, most = to.input(0), to.constant(np.float32(0)), to.constant(np.float32(CODES - 1))
    largest, least = (to.add(f"Reduce{kind}", data, keepdims=0) for kind in ("Max", "Min"))
    least = to.add("Min", least, none)
    step = to.add("Div", to.add("Sub", to.add("Max", largest, none), least), most)
    # Where all numbers are zero, as ONNX Runtime has it.
    scale = to.add("Where", to.add("Equal", step, none), to.constant(np.float32(1)), step)
    zero = to.add("Round", to.add("Clip", to.add("Sub", none, to.add("Div", least, scale)), none, most))
    codes = to.add("Add", to.add("Round", to.add("Div", data, scale)), zero)
    return to.add("Clip", codes, none, most), scale, zero


def _dynamic_codes(to: Replacement) -> str:
    """DynamicQuantizeLinear, whose scale and zero point are results too."""
    codes, *rest = _dynamic(to)
    rest[1] = as_type(to, rest[1], np.uint8)
    for name, result in zip(to.node.output[1:], rest, strict=False):
        to.nodes.append(onnx.helper.make_node("Identity", [result], [name], name=name))
    return as_type(to, codes, np.uint8)


def _with_bias(to: Replacement, result: str, at: int) -> str:
    return to.add("Add", result, to.input(at)) if to.input(at) else result


def _standard(operator: str, to: Replacement) -> str:
    """ONNX Runtime's own form of one of ONNX's operators."""
    return to.add(operator, *to.node.input, **to.attributes)


def _without(to: Replacement, *names: str) -> dict[str, Any]:
    return {name: value for name, value in to.attributes.items() if name not in names}


def _require_nchw(to: Replacement) -> None:
    if to.attributes.get("channels_last", 0):
        raise ModelError(to.where, "its channels are last", to.node.op_type, "NCHW", "save the model unoptimised")


def _microsoft(**expansions: Callable[[Replacement], str]) -> dict[str, Rewrite]:
    return {f"com.microsoft.{name}": expansion for name, expansion in expansions.items()}


EXPANSIONS: dict[str, Rewrite] = {
    "DynamicQuantizeLinear": _dynamic_codes,
    "QLinearConv": _convolution,
    "QLinearMatMul": _product,
    "ConvInteger": _integer_convolution,
    "MatMulInteger": _integer_product,
    **_microsoft(
        QLinearConv=_convolution,
        QGemm=_gemm,
        QLinearAdd=partial(_one_by_one, "Add", 2),
        QLinearMul=partial(_one_by_one, "Mul", 2),
        QLinearSigmoid=partial(_one_by_one, "Sigmoid", 1),
        QLinearLeakyRelu=partial(_one_by_one, "LeakyRelu", 1),
        QLinearGlobalAveragePool=partial(_one_by_one, "GlobalAveragePool", 1),
        QLinearAveragePool=partial(_one_by_one, "AveragePool", 1),
        QLinearReduceMean=partial(_one_by_one, "ReduceMean", 1),
        QLinearSoftmax=_softmax,
        QLinearConcat=_concatenation,
        QLinearWhere=_choice,
        MatMulIntegerToFloat=_scaled_product,
        DynamicQuantizeMatMul=_dynamic_product,
        **{name: partial(_standard, name) for name in _QUANTISING},
    ),
}
"""By the operator, with the domain of those that are none of ONNX's."""
