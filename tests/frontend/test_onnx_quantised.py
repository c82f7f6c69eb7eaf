"""Quantised networks, in all forms that files have, give what ONNX Runtime makes of them, to one step."""

import itertools

import numpy as np
import onnx
import pytest
import quantised
import zoo

from tvm_sparse.errors import ModelError
from tvm_sparse.frontend.prepare import prepare

EVERY = [*itertools.product(quantised.networks(), quantised.FORMATS, (False, True), quantised.TYPES)]
ONE = ("residual", "qoperator", True, "u8u8")
FEW = ("conv", "sum")
_RANDOM = np.random.default_rng(0)


def saved(model, folder):
    onnx.save(model, folder / "m.onnx")
    return folder / "m.onnx"


def assert_a_step_apart(path, *arrays):
    """Ours from ONNX Runtime's outputs: integers by one, floats by the least that two of these are apart."""
    pairs = zip(zoo.run_relax(prepare(path).mod, *arrays), zoo.run_onnx(onnx.load(path), *arrays), strict=True)
    for found, expected in pairs:
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        step = 1 if expected.dtype.kind in "iu" else np.diff(np.unique(expected)).min()
        assert np.abs(found.astype(np.float64) - expected).max() <= 1.001 * step


def test_what_onnx_runtime_quantises_agrees_with_it(tmp_path):
    path = quantised.quantised_file(tmp_path, *ONE)
    assert_a_step_apart(path, quantised.sample(9))
    layers = prepare(path).layers
    # Zeros of the weights before, which are no zeros of uint8, and names.
    assert layers[0].name == "0" and all(layer.is_quantised for layer in layers)
    assert all(layer.pattern.density < 0.8 for layer in layers)


@pytest.mark.conformance
@pytest.mark.parametrize("form", EVERY, ids=str)
def test_all_that_onnx_runtime_quantises_agrees_with_it(form, tmp_path):
    assert_a_step_apart(quantised.quantised_file(tmp_path, *form), quantised.sample(9))


@pytest.mark.parametrize("names", [FEW, pytest.param(tuple(quantised.NODES), marks=pytest.mark.conformance)])
def test_operators_agree_with_onnx_runtime(names, tmp_path):
    assert_a_step_apart(saved(quantised.node_model(names), tmp_path), *quantised.node_inputs())


def test_a_weight_at_its_zero_point_is_zero(tmp_path):
    weight = _RANDOM.integers(0, 256, (4, 4, 3, 3)).astype(np.uint8)
    weight[:, :, ::2] = 128
    path = saved(quantised.sparseml_model(weight), tmp_path)
    assert_a_step_apart(path, zoo._random(1, 4, 7, 7))
    (layer,) = prepare(path).layers
    assert layer.name == "c"
    np.testing.assert_array_equal(layer.weight, weight.astype(np.float32) - 128)


def qdq_model(bias_scale):
    """A linear layer whose weight is transposed behind DequantizeLinear, and a bias of a scale of its own."""
    constants = {
        **{"s": np.float32(0.05), "z": np.int8(5), "ws": np.float32([0.01, 0.02, 0.03]), "wz": np.int8([0, 0, 0])},
        **{"w": _RANDOM.integers(-99, 99, (3, 4)).astype(np.int8), "bs": np.float32(bias_scale)},
        **{"b": np.int32([100, -200, 300])},
    }
    nodes = [
        ("QuantizeLinear", ["x", "s", "z"], ["q"], {}),
        ("DequantizeLinear", ["q", "s", "z"], ["d"], {}),
        ("DequantizeLinear", ["w", "ws", "wz"], ["dw"], {"axis": 0}),
        ("Transpose", ["dw"], ["t"], {"perm": [1, 0]}),
        ("DequantizeLinear", ["b", "bs"], ["db"], {}),
        ("Gemm", ["d", "t", "db"], ["g"], {"alpha": 0.5}),
        ("Flatten", ["g"], ["f"], {}),
        ("QuantizeLinear", ["f", "s", "z"], ["p"], {}),
        ("DequantizeLinear", ["p", "s", "z"], ["y"], {}),
    ]
    return zoo.onnx_model(nodes, constants, {"x": (2, 4)}, {"y": (2, 3)})


def sparse_qdq_model():
    """A convolution of integers, whose result is left in floats."""
    weight = _RANDOM.integers(-99, 99, (4, 4, 3, 3)).astype(np.int8)
    nodes = [
        ("QuantizeLinear", ["x", "s", "z"], ["q"], {}),
        ("DequantizeLinear", ["q", "s", "z"], ["d"], {}),
        ("DequantizeLinear", ["w", "s", "z"], ["dw"], {}),
        ("Conv", ["d", "dw"], ["y"], {"pads": [1, 1, 1, 1]}),
    ]
    constants = {"s": np.float32(0.05), "z": np.int8(0), "w": weight}
    return zoo.onnx_model(nodes, constants, {"x": (1, 4, 7, 7)}, {"y": (1, 4, 7, 7)})


def test_other_scales_and_forms_of_weights_agree(tmp_path):
    assert_a_step_apart(saved(qdq_model(0.003), tmp_path), zoo._random(2, 4) * 3)


def test_a_vector_of_several_scales_agrees(tmp_path):
    """Its scales are those of what is summed, so they cannot come behind the sum."""
    constants = {
        **{"s": np.float32(0.05), "z": np.uint8(100), "w": _RANDOM.integers(-99, 99, 4).astype(np.int8)},
        **{"ws": np.float32([0.01, 0.2, 0.03, 0.1]), "wz": np.int8([0, 0, 0, 0])},
    }
    nodes = [
        ("QuantizeLinear", ["x", "s", "z"], ["q"], {}),
        ("DequantizeLinear", ["q", "s", "z"], ["d"], {}),
        ("DequantizeLinear", ["w", "ws", "wz"], ["dw"], {"axis": 0}),
        ("MatMul", ["d", "dw"], ["y"], {}),
    ]
    path, x = saved(zoo.onnx_model(nodes, constants, {"x": (4, 4)}, {"y": (4,)}), tmp_path), zoo._random(4, 4)
    (found,) = zoo.run_relax(prepare(path).mod, x)
    # ONNX Runtime has an integer kernel for it that takes no such weight.
    expected = np.clip(np.rint(x / np.float32(0.05)), -100, 155) * 0.05 @ (constants["w"] * constants["ws"])
    np.testing.assert_allclose(found, expected, rtol=1e-5)


_STEP, _ROUNDED = {"s": np.float32(0.05), "z": np.uint8(100)}, ("QuantizeLinear", ["x", "s", "z"], ["q"], {})
_FLOATS = ("DequantizeLinear", ["q", "s", "z"], ["d"], {})


@pytest.mark.parametrize(
    "between",
    [
        [("AveragePool", ["d"], ["m"], {"kernel_shape": [3, 3]})],
        [("AveragePool", ["d"], ["a"], {"kernel_shape": [3, 3]}), ("Relu", ["a"], ["m"], {})],
        [("AveragePool", ["d"], ["a"], {"kernel_shape": [3, 3]}), ("Transpose", ["a"], ["m"], {"perm": [0, 1, 3, 2]})],
    ],
    ids=lambda each: each[-1][0],
)
def test_means_are_rounded_where_both_scales_are_the_same(between, tmp_path):
    nodes = [_ROUNDED, _FLOATS, *between, ("QuantizeLinear", ["m", "s", "z"], ["y"], {})]
    model = zoo.onnx_model(nodes, _STEP, {"x": (2, 4, 8, 8)}, {"y": (2, 4, 6, 6)})
    model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.UINT8
    path, x = saved(model, tmp_path), zoo._random(2, 4, 8, 8) * 2
    # No ninth of an integer is half-way between two.
    np.testing.assert_array_equal(*zoo.run_relax(prepare(path).mod, x), *zoo.run_onnx(model, x))


@pytest.mark.parametrize("zero", [6, 7])
def test_a_pool_of_onnx_runtime_rounds_with_the_zero_point(zero, tmp_path):
    """A quarter of the means of four are half-way between two codes, of which the even one is taken."""
    # ONNX Runtime's sums of scaled codes are exact.
    constants = {"s": np.float32(1 / 16), "z": np.uint8(100), "zero": np.uint8(zero)}
    shapes = {"x": (2, 4, 8, 8)}, {"y": (2, 4, 8, 8)}
    model = zoo.onnx_model([_ROUNDED, ("Identity", ["q"], ["y"], {})], constants, *shapes)
    attributes = {"domain": "com.microsoft", "kernel_shape": [2, 2], "pads": [0, 0, 1, 1]}
    pool = onnx.helper.make_node("QLinearAveragePool", ["q", "s", "z", "s", "zero"], ["y"], "pool", **attributes)
    model.graph.node[-1].CopyFrom(pool)
    model.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.UINT8
    path, x = saved(model, tmp_path), zoo._random(2, 4, 8, 8) * 2
    np.testing.assert_array_equal(*zoo.run_relax(prepare(path).mod, x), *zoo.run_onnx(model, x))


def test_scales_and_zero_points_may_be_lists_of_one_and_inputs(tmp_path):
    model = qdq_model(0.003)
    for tensor in model.graph.initializer:
        if not tensor.dims:
            tensor.dims.append(1)
    (one, *_) = model.graph.input
    model.graph.input.add(name="s", type=one.type).type.tensor_type.shape.dim.pop()
    model.graph.input[1].type.tensor_type.shape.dim[0].dim_value = 1
    path = saved(model, tmp_path)
    assert_a_step_apart(path, zoo._random(2, 4) * 3)
    assert len(prepare(path).mod["main"].params) == 1


def test_a_scalar_stays_one(tmp_path):
    nodes = [_ROUNDED, _FLOATS, ("ReduceMax", ["d"], ["most"], {"keepdims": 0})]
    nodes += [("QuantizeLinear", ["most", "s", "z"], ["p"], {}), ("DequantizeLinear", ["p", "s", "z"], ["y"], {})]
    path = saved(zoo.onnx_model(nodes, _STEP, {"x": (2, 4)}, {"y": ()}), tmp_path)
    (found,) = zoo.run_relax(prepare(path).mod, zoo._random(2, 4))
    assert found.shape == ()


@pytest.mark.parametrize("factor", [1, 0])
def test_scales_of_run_time_are_those_of_onnx_runtime(factor, tmp_path):
    nodes = [("DynamicQuantizeLinear", ["x"], ["q", "s", "z"], {}), ("Identity", ["s"], ["y"], {})]
    model = zoo.onnx_model(nodes, {}, {"x": (3, 4)}, {"y": ()})
    for name in "qz":
        model.graph.output.add(name=name).type.tensor_type.elem_type = onnx.TensorProto.UINT8
    x = zoo._random(3, 4) * factor
    for found, expected in zip(
        zoo.run_relax(prepare(saved(model, tmp_path)).mod, x), zoo.run_onnx(model, x), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-6, strict=True)


def test_zero_points_of_several_axes_agree(tmp_path):
    constants = _STEP | {"w": _RANDOM.integers(-99, 99, (2, 4, 5)).astype(np.int8)}
    constants["wz"] = _RANDOM.integers(-9, 9, (2, 1, 5)).astype(np.int8)
    nodes = [_ROUNDED, ("MatMulInteger", ["q", "w", "z", "wz"], ["sums"], {}), ("Cast", ["sums"], ["y"], {"to": 1})]
    path = saved(zoo.onnx_model(nodes, constants, {"x": (2, 3, 4)}, {"y": (2, 3, 5)}), tmp_path)
    assert_a_step_apart(path, zoo._random(2, 3, 4))


def test_weights_of_four_bits_agree_in_older_operator_sets(tmp_path):
    kind = onnx.TensorProto.INT4
    zero, weight = onnx.helper.make_tensor("wz", kind, [], [2]), _RANDOM.integers(-8, 8, 24)
    nodes = [_ROUNDED, _FLOATS, ("DequantizeLinear", ["w", "s", "wz"], ["dw"], {}), ("MatMul", ["d", "dw"], ["y"], {})]
    model = zoo.onnx_model(nodes, _STEP | {"w": np.int8(0), "wz": np.int8(0)}, {"x": (3, 4)}, {"y": (3, 6)})
    del model.graph.initializer[2:]
    model.graph.initializer.extend([onnx.helper.make_tensor("w", kind, [4, 6], weight), zero])
    model.graph.node[2].domain = "com.microsoft"
    model.opset_import.add(domain="com.microsoft", version=1)
    assert_a_step_apart(saved(model, tmp_path), zoo._random(3, 4))


def test_another_type_without_a_zero_point_agrees(tmp_path):
    nodes = [("QuantizeLinear", ["x", "s"], ["q"], {}), ("DequantizeLinear", ["q", "s"], ["y"], {})]
    model = zoo.onnx_model(nodes, _STEP, {"x": (2, 4)}, {"y": (2, 4)})
    model.graph.node[0].attribute.append(onnx.helper.make_attribute("output_dtype", onnx.TensorProto.INT8))
    model.opset_import[0].version, model.ir_version = 21, 10
    assert_a_step_apart(saved(model, tmp_path), zoo._random(2, 4) * 9)


def test_floats_of_another_type_are_refused(tmp_path):
    model = zoo.onnx_model([_ROUNDED, _FLOATS, ("Cast", ["d"], ["y"], {"to": 1})], _STEP, {"x": (2, 4)}, {"y": (2, 4)})
    model.graph.node[1].attribute.append(onnx.helper.make_attribute("output_dtype", onnx.TensorProto.FLOAT16))
    model.opset_import[0].version, model.ir_version = 23, 11
    with pytest.raises(ModelError, match="not supported with this use of its output dtype, found 10"):
        prepare(saved(model, tmp_path))


def test_in_half_precision_weights_are_floats(tmp_path):
    # Sums of integers would overflow it.
    path = saved(sparse_qdq_model(), tmp_path)
    prepared = prepare(path, dtype="float16")
    assert [layer.spec.dtype for layer in prepared.layers] == ["float16"] and not prepared.is_quantised
    x = zoo._random(1, 4, 7, 7)
    (found,), (expected,) = zoo.run_relax(prepared.mod, x.astype(np.float16)), zoo.run_onnx(onnx.load(path), x)
    np.testing.assert_allclose(found, expected, atol=0.02 * np.abs(expected).max())


@pytest.mark.parametrize(
    ("name", "attribute", "sentence"),
    [
        ("mean", {"channels_last": 1}, "node mean: its channels are last, found QLinearGlobalAveragePool"),
        ("softmax", {"axis": 1, "opset": 12}, "node softmax: its Softmax is of an older opset, found 12"),
        ("unknown", {}, "node unknown: its operator is not supported, found com.microsoft.QAttention"),
    ],
)
def test_what_is_not_known_is_refused_by_name(name, attribute, sentence, tmp_path):
    operator, inputs, _ = quantised.NODES.get(name, ("QAttention", ("q",), {}))
    model = quantised.node_model((name,), {name: (operator, inputs, attribute)})
    with pytest.raises(ModelError, match=sentence):
        prepare(saved(model, tmp_path))


@pytest.mark.parametrize("columns", [33_025, 33_026])
@pytest.mark.parametrize("form", ["constant", "computed"])
def test_sums_beyond_int32_are_refused(form, columns, tmp_path):
    weight = np.full((columns, 2), 255, np.uint8)
    constants = {"w": weight} if form == "constant" else {"one": np.int64([1, 2]), "row": weight[:, :1]}
    made = [] if form == "constant" else [("Tile", ["row", "one"], ["w"], {})]
    nodes = [*made, ("MatMulInteger", ["q", "w"], ["sums"], {}), ("Cast", ["sums"], ["y"], {"to": 1})]
    quantised_input = [("QuantizeLinear", ["x", "s", "z"], ["q"], {})]
    constants |= {"s": np.float32(1), "z": np.uint8(0)}
    model = zoo.onnx_model([*quantised_input, *nodes], constants, {"x": (1, columns)}, {"y": (1, 2)})
    if columns == 33_025:
        assert prepare(saved(model, tmp_path)).mod is not None
        return
    with pytest.raises(ModelError, match="its sums can pass int32, found 2147515650; allowed: 2147483647"):
        prepare(saved(model, tmp_path))


_QUANTISED, _POOL = ("QuantizeLinear", ["x", "s", "z"], ["q"], {}), {"kernel_shape": [1, 1]}
BEFORE = {
    "rounded": ([_QUANTISED, ("DequantizeLinear", ["q", "s", "z"], ["d"], {})], -133),
    "pooled": (
        [_QUANTISED, ("MaxPool", ["q"], ["m"], _POOL), ("DequantizeLinear", ["m", "s", "z"], ["d"], {})],
        -133,
    ),
    "pooled between": (
        [
            _QUANTISED,
            ("DequantizeLinear", ["q", "s", "z"], ["e"], {}),
            ("MaxPool", ["e"], ["p"], _POOL),
            ("QuantizeLinear", ["p", "s", "z"], ["m"], {}),
            ("DequantizeLinear", ["m", "s", "z"], ["d"], {}),
        ],
        -133,
    ),
    "floats": ([("Relu", ["x"], ["d"], {})], 1),
}


@pytest.mark.parametrize("before", BEFORE)
def test_the_range_of_what_a_layer_reads_is_known(before, tmp_path):
    nodes, least = BEFORE[before]
    constants = {"s": np.float32(0.05), "z": np.int8(5), "w": _RANDOM.integers(-99, 99, (4, 4, 1, 1)).astype(np.int8)}
    nodes = [*nodes, ("DequantizeLinear", ["w", "s"], ["dw"], {}), ("Conv", ["d", "dw"], ["y"], {})]
    model = zoo.onnx_model(nodes, constants, {"x": (1, 4, 7, 7)}, {"y": (1, 4, 7, 7)})
    (layer,) = prepare(saved(model, tmp_path)).layers
    assert layer.spec.least == least
