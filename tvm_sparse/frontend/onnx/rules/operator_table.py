"""What is imported of ONNX: operators, with the attributes, types, inputs and outputs that tests have seen right.

`tests/frontend/test_conformance.py` has a case for each value. Keys are those of `traits.py`. FREE stands for numbers
of which any does alike, such as axes and sizes.
"""

from typing import Any

FREE = object()
# Operator sets whose operators were tested.
OPSETS = range(7, 29)

_FLOATS = ("float32", "float64", "float16")
_SIGNED = ("int8", "int16", "int32", "int64")
_UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
_INTEGERS = (*_SIGNED, *_UNSIGNED)
_NUMBERS = (*_FLOATS, *_INTEGERS)
_ANY = (*_NUMBERS, "bool")
_WIDE_INTEGERS = ("int32", "int64", "uint32", "uint64")
_INDICES = ("int32", "int64")
_BYTES, _SCALES = ("int8", "uint8"), ("float32", "float16")
_CONSTANT, _GIVEN = ("constant",), ("constant", "computed")
_BOTH = (0, 1)

Rules = dict[str, Any]


def _op(**rules: Any) -> Rules:
    return rules


_ONE_TYPE = {
    **dict.fromkeys(("Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Cos", "Sin", "Tan"), _FLOATS),
    **dict.fromkeys(("Ceil", "Erf", "Exp", "Floor", "Log", "Reciprocal", "Round", "Sigmoid", "Sqrt", "Tanh"), _FLOATS),
    **dict.fromkeys(("HardSwish", "Softplus", "Softsign"), _FLOATS),
    "Mish": ("float32", "float64"),
    **dict.fromkeys(("Mean", "Sum"), _FLOATS),
    **dict.fromkeys(("Abs",), _NUMBERS),
    **dict.fromkeys(("Neg", "Relu", "Sign"), (*_FLOATS, *_SIGNED)),
    **dict.fromkeys(("Add", "Div", "Max", "Min", "Mul", "Sub"), _NUMBERS),
    **dict.fromkeys(("BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor"), _INTEGERS),
    **dict.fromkeys(("Greater", "GreaterOrEqual", "Less", "LessOrEqual"), _NUMBERS),
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool"), _FLOATS),
    **dict.fromkeys(("MatMul", "PRelu"), (*_FLOATS, *_WIDE_INTEGERS)),
}
_NO_TYPE = ("And", "Not", "Or", "Xor")
_WITH_AXIS = {
    **dict.fromkeys(("Hardmax", "LogSoftmax", "Softmax"), _FLOATS),
    **dict.fromkeys(("Concat", "Flatten"), _ANY),
}
_REDUCTIONS = {
    **dict.fromkeys(("ReduceL2", "ReduceLogSum", "ReduceLogSumExp"), _FLOATS),
    **dict.fromkeys(("ReduceMean", "ReduceSumSquare"), (*_FLOATS, "int64", "uint64")),
    **dict.fromkeys(("ReduceL1", "ReduceProd", "ReduceSum"), (*_FLOATS, *_WIDE_INTEGERS)),
    **dict.fromkeys(("ReduceMax", "ReduceMin"), (*_FLOATS, *_WIDE_INTEGERS, "int8", "uint8")),
}
_WINDOW = {"auto_pad": ("NOTSET", "VALID"), "kernel_shape": FREE, "pads": FREE, "strides": FREE, "dilations": FREE}

_RULES: dict[str, Rules] = {
    **{name: _op(T=types) for name, types in _ONE_TYPE.items()},
    **{name: _op() for name in _NO_TYPE},
    **{name: _op(T=types, axis=FREE) for name, types in _WITH_AXIS.items()},
    **{
        name: _op(T=types, axes=FREE, optional_axes=_CONSTANT, keepdims=_BOTH, noop_with_empty_axes=_BOTH)
        for name, types in _REDUCTIONS.items()
    },
    **{name: _op(T=_NUMBERS, axis=FREE, keepdims=_BOTH, select_last_index=_BOTH) for name in ("ArgMax", "ArgMin")},
    # Numbers, one by one.
    "BitShift": _op(T=_UNSIGNED, direction=("LEFT", "RIGHT")),
    "Cast": _op(T1=_ANY, T2=_ANY, to=FREE, saturate=(1,), round_mode=("up",)),
    "Clip": _op(T=_NUMBERS, min=FREE, max=FREE, optional_min=_GIVEN, optional_max=_GIVEN),
    "CumSum": _op(T=(*_FLOATS, *_INDICES), T2=_INDICES, input_axis=_CONSTANT, exclusive=_BOTH, reverse=_BOTH),
    "Dropout": _op(
        T=_FLOATS, T1=_FLOATS, ratio=FREE, seed=FREE, optional_ratio=_GIVEN, optional_training_mode=_CONSTANT
    ),
    "Elu": _op(T=("float16", "float32"), alpha=FREE),
    "Equal": _op(T=_NUMBERS),
    "Gelu": _op(T=_FLOATS, approximate=("none", "tanh")),
    "HardSigmoid": _op(T=_FLOATS, alpha=FREE, beta=FREE),
    "Identity": _op(T=_ANY, V=_ANY),
    "IsInf": _op(T1=_FLOATS, detect_negative=(1,), detect_positive=(1,)),
    "IsNaN": _op(T1=_FLOATS),
    "LeakyRelu": _op(T=_FLOATS, alpha=FREE),
    "Selu": _op(T=("float16", "float32"), alpha=FREE, gamma=FREE),
    "Shrink": _op(T=_FLOATS, bias=FREE, lambd=FREE),
    "ThresholdedRelu": _op(T=("float16", "float32"), alpha=FREE),
    "Trilu": _op(T=_ANY, upper=_BOTH, optional_k=_GIVEN),
    "Where": _op(T=_ANY),
    # Layers.
    "BatchNormalization": _op(
        **dict.fromkeys(("T", "T1", "T2", "U"), ("float32",)),
        epsilon=FREE,
        momentum=FREE,
        spatial=(1,),
        training_mode=(0,),
    ),
    "Conv": _op(T=_FLOATS, **_WINDOW, group=FREE, optional_B=_GIVEN),
    "ConvTranspose": _op(T=_FLOATS, **_WINDOW, group=FREE, optional_B=_GIVEN, output_padding=FREE),
    "Einsum": _op(T=_NUMBERS, equation=FREE),
    "Gemm": _op(T=(*_FLOATS, *_WIDE_INTEGERS), alpha=FREE, beta=FREE, transA=_BOTH, transB=_BOTH, optional_C=_GIVEN),
    "GroupNormalization": _op(T=_FLOATS, epsilon=FREE, num_groups=FREE, stash_type=(1,)),
    "InstanceNormalization": _op(T=("float32", "float64"), epsilon=FREE),
    "LayerNormalization": _op(T=("float32",), axis=FREE, epsilon=FREE, stash_type=(1,), optional_B=_GIVEN),
    "LRN": _op(T=("float16", "float32"), alpha=FREE, beta=FREE, bias=FREE, size=(1, 3, 5, 7, 9), rank=(3, 4)),
    # Windows and grids.
    "AffineGrid": _op(T1=("float32",), align_corners=_BOTH, input_size=_CONSTANT),
    "AveragePool": _op(T=_FLOATS, **_WINDOW, ceil_mode=_BOTH, count_include_pad=_BOTH, rank=(3, 4, 5)),
    "DepthToSpace": _op(T=_ANY, blocksize=FREE, mode=("CRD", "DCR")),
    "GridSample": _op(
        T1=_FLOATS,
        T2=("float16", "float32"),
        align_corners=_BOTH,
        mode=("bilinear", "linear", "nearest", "bicubic", "cubic"),
        padding_mode=("border", "reflection", "zeros"),
        rank=(4, 5),
    ),
    "GlobalLpPool": _op(version=(2,), T=("float32",), p=FREE, rank=(3, 4, 5)),
    "MaxPool": _op(T=(*_FLOATS, "int8", "uint8"), **_WINDOW, ceil_mode=_BOTH, storage_order=_BOTH, rank=(3, 4, 5)),
    "Resize": _op(
        version=(11, 13, 18, 19),
        T1=_FLOATS,
        T2=_FLOATS,
        T=_FLOATS,
        antialias=(0,),
        axes=FREE,
        coordinate_transformation_mode=("align_corners", "asymmetric", "half_pixel", "pytorch_half_pixel"),
        cubic_coeff_a=FREE,
        exclude_outside=_BOTH,
        extrapolation_value=FREE,
        keep_aspect_ratio_policy=("stretch",),
        mode=("cubic", "linear", "nearest"),
        nearest_mode=("ceil", "floor", "round_prefer_ceil", "round_prefer_floor"),
        optional_roi=_CONSTANT,
        optional_scales=_CONSTANT,
        optional_sizes=_CONSTANT,
    ),
    "RoiAlign": _op(
        T1=_FLOATS,
        T2=("int64",),
        coordinate_transformation_mode=("half_pixel", "output_half_pixel"),
        mode=("avg",),
        output_height=FREE,
        output_width=FREE,
        sampling_ratio=FREE,
        spatial_scale=FREE,
    ),
    "SpaceToDepth": _op(T=_ANY, blocksize=FREE, mode=("DCR",)),
    # Places and shapes.
    "Constant": _op(T=(*_FLOATS, "int64"), value=("float32", "int64")),
    "Expand": _op(T=_ANY, input_shape=_CONSTANT),
    "Gather": _op(T=_ANY, Tind=_INDICES, axis=FREE),
    "GatherElements": _op(T=_ANY, Tind=_INDICES, axis=FREE),
    "GatherND": _op(T=_ANY, batch_dims=FREE),
    "OptionalGetElement": _op(version=(18, 28), O=_ANY, V=_ANY),
    "Pad": _op(
        T=_ANY,
        Tind=_INDICES,
        mode=("constant", "edge", "reflect", "wrap"),
        pads=FREE,
        value=FREE,
        input_pads=_CONSTANT,
        optional_constant_value=_CONSTANT,
        optional_axes=_CONSTANT,
    ),
    "If": _op(V=_ANY),
    "Reshape": _op(T=_ANY, allowzero=_BOTH, input_shape=_CONSTANT),
    "Scatter": _op(T=_ANY, Tind=_INDICES, axis=FREE),
    "ScatterElements": _op(T=_ANY, Tind=_INDICES, axis=FREE, reduction=("add", "max", "min", "mul", "none")),
    "ScatterND": _op(T=_ANY, reduction=("add", "max", "min", "mul", "none")),
    "Size": _op(T=_ANY),
    "Slice": _op(
        T=_ANY,
        Tind=_INDICES,
        input_starts=_CONSTANT,
        input_ends=_CONSTANT,
        optional_axes=_CONSTANT,
        optional_steps=_CONSTANT,
    ),
    "Split": _op(T=_ANY, axis=FREE, num_outputs=FREE, split=FREE, optional_split=_CONSTANT),
    "Squeeze": _op(T=_ANY, axes=FREE, optional_axes=_CONSTANT),
    "Tile": _op(T=_ANY, input_repeats=_CONSTANT),
    "TopK": _op(
        version=(11, 24),
        T=(*_FLOATS, "int8", "int32", "int64", "uint8"),
        axis=FREE,
        k=FREE,
        largest=_BOTH,
        sorted=(1,),
        input_K=_CONSTANT,
        output_Indices=("read",),
    ),
    "Transpose": _op(T=_ANY, perm=FREE),
    "Unsqueeze": _op(T=_ANY, axes=FREE, input_axes=_CONSTANT),
    # Numbers in eight bits.
    "DequantizeLinear": _op(
        T=(*_BYTES, "int32"),
        T1=(*_BYTES, "int16", "int32", "uint16"),
        T2=_SCALES,
        T3=_SCALES,
        axis=FREE,
        block_size=(0,),
        output_dtype=(0,),
        optional_x_zero_point=_GIVEN,
    ),
    "QuantizeLinear": _op(
        T1=_SCALES,
        T2=(*_BYTES, *_SCALES),
        T3=(*_BYTES, "int16", "uint16"),
        axis=FREE,
        block_size=(0,),
        output_dtype=(0,),
        precision=(0,),
        saturate=_BOTH,
        optional_y_zero_point=_GIVEN,
    ),
}

OPERATORS: dict[str, tuple[Rules, ...]] = {
    **{name: (rules,) for name, rules in _RULES.items()},
    # Floats as the older specification has them, with the sign of the dividend.
    "Mod": (_op(T=_INTEGERS, fmod=_BOTH), _op(T=_FLOATS, fmod=(1,))),
    "EyeLike": tuple(_op(T1=(name,), T2=(name,), dtype=FREE, k=FREE) for name in _ANY),
    "Pow": tuple(_op(T=(name,), T1=(name,)) for name in _FLOATS),
}
"""For each operator the rules of which one must allow all that a node asks for."""

# What to do instead, where that is known.
WAYS_OUT = {
    "NonMaxSuppression": "export the model without it, and select boxes of its outputs",
    "NonZero": "its output's size depends on values: compute it outside the model",
    "Loop": "export the model with a fixed number of steps, unrolled",
    "Scan": "export the model with a fixed number of steps, unrolled",
}
