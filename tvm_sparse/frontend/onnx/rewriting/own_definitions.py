"""Definitions in ONNX's text format of operators for which the specification gives none.

Each stands for a node that has the key of traits that the table of operators does not have, with one of the values if
there are any; the key is empty where it does not have the operator. ``$T`` is the element type of the first input,
``$F`` the same if that is a floating-point type, else float64.
"""

from string import Template
from typing import Any

from tvm_sparse.frontend.optional_imports import onnx

DOMAIN = "tvm_sparse"
# Operators take their axes as inputs from here on.
_OLDEST_OPSET = 13
_BOOL = ("bool",)

_IS_INF = """
IsInf <detect_negative: int = 1, detect_positive: int = 1> (x) => (y) {
    negative = Constant <value_int: int = @detect_negative> ()
    positive = Constant <value_int: int = @detect_positive> ()
    finds_negative = Cast <to = 9> (negative)
    finds_positive = Cast <to = 9> (positive)
    infinite = IsInf (x)
    negated = Neg (x)
    is_negative = Less (x, negated)
    finds = Where (is_negative, finds_negative, finds_positive)
    y = And (infinite, finds)
}"""
# The remainder that has the sign of the divisor, of the one that has the sign of the dividend.
_MOD = """
Mod (a, b) => (c) {
    remainder = Mod <fmod = 1> (a, b)
    sign = Sign (remainder)
    sign_b = Sign (b)
    signs = Mul (sign, sign_b)
    negated = Neg (signs)
    differ = Less (signs, negated)
    moved = Add (remainder, b)
    c = Where (differ, moved, remainder)
}"""
_POW = """
Pow (x, y) => (z) {
    base = Cast <to = $F> (x)
    exponent = Cast <to = $F> (y)
    power = Pow (base, exponent)
    z = Cast <to = $T> (power)
}"""
_REDUCE_BOOL = """
$operator <keepdims: int = 1, noop_with_empty_axes: int = 0> (data, axes) => (reduced) {
    numbers = Cast <to = 6> (data)
    found = $operator <keepdims: int = @keepdims, noop_with_empty_axes: int = @noop_with_empty_axes> (numbers, axes)
    reduced = Cast <to = 9> (found)
}"""
# LLVM has no vectors of booleans that are compared.
_EQUAL = """
Equal (a, b) => (c) {
    differ = Xor (a, b)
    c = Not (differ)
}"""
# By half of the exponential, which is finite where the result is.
_COSH = """
Cosh (x) => (y) {
    log_2 = Constant <value_float = 0.69314718> ()
    quarter = Constant <value_float = 0.25> ()
    log_2_x = Cast <to = $T> (log_2)
    quarter_x = Cast <to = $T> (quarter)
    size = Abs (x)
    exponent = Sub (size, log_2_x)
    half = Exp (exponent)
    rest = Div (quarter_x, half)
    y = Add (half, rest)
}"""
# By its series around zero, where the exponentials take each other away.
_SINH = """
Sinh (x) => (y) {
    log_2 = Constant <value_float = 0.69314718> ()
    quarter = Constant <value_float = 0.25> ()
    one = Constant <value_float = 1.0> ()
    factors = Constant <value_floats = [0.16666667, 0.05, 0.023809524, 0.013888889]> ()
    log_2_x = Cast <to = $T> (log_2)
    quarter_x = Cast <to = $T> (quarter)
    one_x = Cast <to = $T> (one)
    factors_x = Cast <to = $T> (factors)
    place_0 = Constant <value = int64 {0}> ()
    place_1 = Constant <value = int64 {1}> ()
    place_2 = Constant <value = int64 {2}> ()
    place_3 = Constant <value = int64 {3}> ()
    factor_0 = Gather (factors_x, place_0)
    factor_1 = Gather (factors_x, place_1)
    factor_2 = Gather (factors_x, place_2)
    factor_3 = Gather (factors_x, place_3)
    square = Mul (x, x)
    scaled_3 = Mul (square, factor_3)
    sum_3 = Add (scaled_3, one_x)
    product_2 = Mul (square, sum_3)
    scaled_2 = Mul (product_2, factor_2)
    sum_2 = Add (scaled_2, one_x)
    product_1 = Mul (square, sum_2)
    scaled_1 = Mul (product_1, factor_1)
    sum_1 = Add (scaled_1, one_x)
    product_0 = Mul (square, sum_1)
    scaled_0 = Mul (product_0, factor_0)
    sum_0 = Add (scaled_0, one_x)
    near_zero = Mul (x, sum_0)
    size = Abs (x)
    exponent = Sub (size, log_2_x)
    half = Exp (exponent)
    rest = Div (quarter_x, half)
    difference = Sub (half, rest)
    sign = Sign (x)
    far = Mul (sign, difference)
    is_near = Less (size, one_x)
    y = Where (is_near, near_zero, far)
}"""
_EYE_LIKE = """
EyeLike <k: int = 0, dtype: int> (x) => (y) {
    same = EyeLike <k: int = @k> (x)
    y = Cast <to: int = @dtype> (same)
}"""
_DROPOUT = """
Dropout (data, ratio, training_mode) => (output, mask) {
    output = Identity (data)
    shape = Shape (data)
    one = Constant <value_float = 1.0> ()
    ones = Expand (one, shape)
    mask = Cast <to = 9> (ones)
}"""
_LP_NORMALIZATION = """
LpNormalization <axis: int = -1, p: int = 2> (x) => (y) {
    one = Constant <value = int64[1] {1}> ()
    axis = Constant <value_int: int = @axis> ()
    axes = Reshape (axis, one)
    order = Constant <value_int: int = @p> ()
    exponent = Cast <to = $T> (order)
    root = Reciprocal (exponent)
    size = Abs (x)
    powers = Pow (size, exponent)
    total = ReduceSum (powers, axes)
    norm = Pow (total, root)
    one_x = Cast <to = $T> (one)
    zero_x = Sub (one_x, one_x)
    is_zero = Equal (norm, zero_x)
    divisor = Where (is_zero, one_x, norm)
    y = Div (x, divisor)
}"""
_ONE_HOT = """
OneHot <axis: int = -1> (indices, depth, values) => (y) {
    zero = Constant <value = int64[1] {0}> ()
    one = Constant <value = int64[1] {1}> ()
    two = Constant <value = int64[1] {2}> ()
    zero_scalar = Constant <value = int64 {0}> ()
    one_scalar = Constant <value = int64 {1}> ()
    axis = Constant <value_int: int = @axis> ()
    axes = Reshape (axis, one)
    depth_64 = Cast <to = 7> (depth)
    depth_1d = Reshape (depth_64, one)
    depth_scalar = Squeeze (depth_1d, zero)
    index = Cast <to = 7> (indices)
    is_negative = Less (index, zero)
    moved = Add (index, depth_1d)
    place = Where (is_negative, moved, index)
    column = Unsqueeze (place, axes)
    shape = Shape (column)
    rank = Size (shape)
    places = Range (zero_scalar, rank, one_scalar)
    positive = Add (axes, rank)
    at = Mod (positive, rank)
    is_at = Equal (places, at)
    class_shape = Where (is_at, depth_1d, one)
    numbers = Range (zero_scalar, depth_scalar, one_scalar)
    classes = Reshape (numbers, class_shape)
    is_on = Equal (column, classes)
    off_value = Slice (values, zero, one)
    on_value = Slice (values, one, two)
    y = Where (is_on, on_value, off_value)
}"""
_DEFINITIONS: dict[tuple[str, str], tuple[tuple[str, ...], str]] = {
    ("Cosh", ""): ((), _COSH),
    ("Dropout", "output_mask"): ((), _DROPOUT),
    ("Equal", "T"): (_BOOL, _EQUAL),
    ("EyeLike", "T1"): ((), _EYE_LIKE),
    ("IsInf", "detect_negative"): ((), _IS_INF),
    ("IsInf", "detect_positive"): ((), _IS_INF),
    ("LpNormalization", ""): ((), _LP_NORMALIZATION),
    ("Mod", "fmod"): ((), _MOD),
    ("OneHot", ""): ((), _ONE_HOT),
    ("Pow", "T"): ((), _POW),
    ("Pow", "T1"): ((), _POW),
    ("ReduceMax", "T"): (_BOOL, _REDUCE_BOOL),
    ("ReduceMin", "T"): (_BOOL, _REDUCE_BOOL),
    ("Sinh", ""): ((), _SINH),
}


def own_definition(operator: str, key: str, value: Any, element_type: int, opset: int) -> Any:
    """The `onnx.FunctionProto` of domain `DOMAIN` for a node of `operator`, None where there is none.

    `key` and `value` are what the table of operators does not have; `element_type` is the first input's.
    """
    values, text = _DEFINITIONS.get((operator, key), ((), ""))
    if not text or opset < _OLDEST_OPSET or (values and value not in values):
        return None
    kinds = onnx.TensorProto
    wide = element_type if element_type in (kinds.FLOAT, kinds.FLOAT16, kinds.DOUBLE) else kinds.DOUBLE
    body = Template(text).substitute(operator=operator, T=element_type, F=wide)
    return onnx.parser.parse_function(f'<domain: "{DOMAIN}", opset_import: ["": {opset}]>{body}')
