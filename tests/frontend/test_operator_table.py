"""What no test vouches for is refused by name; what ONNX defines otherwise is replaced by that."""

import numpy as np
import onnx
import pytest
from made_cases import merged
from more_cases import array, case
from node_tests import run_form
from onnx import helper, numpy_helper

from tvm_sparse.errors import ModelError
from tvm_sparse.frontend.model_source import ModelSource
from tvm_sparse.frontend.onnx.rules.operators import require_known, unknown_nodes
from tvm_sparse.frontend.onnx.rules.traits import nodes_with_traits


def model_of(operator, *inputs, constants=(), outputs=1, opset=20, domain="", **attributes):
    """A model of one node; `constants` are its last inputs."""
    names = [f"x{index}" for index in range(len(inputs) + len(constants))]
    node = helper.make_node(
        operator, names, [f"y{index}" for index in range(outputs)], name="node", domain=domain, **attributes
    )
    values = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(each.dtype), each.shape)
        for name, each in zip(names, inputs, strict=False)
    ]
    tensors = [numpy_helper.from_array(each, name) for name, each in zip(names[len(inputs) :], constants, strict=True)]
    results = [onnx.ValueInfoProto(name=name) for name in node.output]
    sets = [helper.make_opsetid("", opset), *([helper.make_opsetid(domain, 1)] if domain else [])]
    return helper.make_model(
        helper.make_graph([node], "graph", values, results, tensors), opset_imports=sets, ir_version=9
    )


X = array(2, 3, 4, 4)


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (
            model_of("NonZero", X),
            "MODEL, node node: its operator is not supported, found NonZero; its output's size depends on values: "
            "compute it outside the model",
        ),
        (
            model_of("Relu", X, domain="com.example"),
            "MODEL, node node: its operator is not supported, found com.example.Relu; replace it by other operators, "
            "or compute it outside the model",
        ),
        (
            model_of("Compress", X, np.array([True, False])),
            "MODEL, node node: its operator is not supported, found Compress; replace it by other operators, or "
            "compute it outside the model",
        ),
        (
            model_of("LRN", X, size=4),
            "MODEL, node node: LRN is not supported with this size, found 4; allowed: 1, 3, 5, 7, 9; replace it by "
            "other operators, or compute it outside the model",
        ),
        (
            model_of("Sign", X.astype(np.uint8)),
            "MODEL, node node: Sign is not supported with this element type T, found uint8; allowed: float32, "
            "float64, float16, int8, int16, int32, int64; replace it by other operators, or compute it outside the "
            "model",
        ),
        (
            model_of("Tile", X, np.int64([1, 1, 2, 1])),
            "MODEL, node node: Tile is not supported with this kind of input repeats, found computed; allowed: "
            "constant; replace it by other operators, or compute it outside the model",
        ),
    ],
    ids=["operator", "domain", "in TVM only", "attribute", "type", "input"],
)
def test_what_no_test_vouches_for_is_refused_by_name(model, sentence):
    with pytest.raises(ModelError) as error:
        require_known("MODEL", model)
    assert str(error.value) == sentence


def test_nothing_of_tvm_is_said(tmp_path, capfd):
    path = tmp_path / "model.onnx"
    model = model_of("NonZero", X)
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y0", onnx.TensorProto.INT64, (4, None)))
    onnx.save(model, path)
    with pytest.raises(ModelError, match="found NonZero"):
        ModelSource(path).relax_module()
    assert capfd.readouterr() == ("", "")


X3 = array(2, 3, 4)
INFINITE = np.float32([[-np.inf, np.inf], [np.nan, -1.5]])


@pytest.mark.parametrize(
    "made",
    [
        lambda: case("", 20, "IsInf", [INFINITE], detect_negative=0),
        lambda: case("", 20, "IsInf", [INFINITE], detect_positive=0),
        lambda: case("", 28, "Mod", [np.float32([-5, 5, -5.5, np.inf, 3]), np.float32([3, -3, 2, 2, np.inf])]),
        lambda: case("", 15, "Pow", [np.int32([1, -2, 3]), np.int32([4, 5, 0])]),
        lambda: case("", 15, "Pow", [np.float32([1, -2, 3]), np.int64([4, 5, 0])]),
        lambda: case("", 20, "ReduceMax", [X3 > 0, np.int64([1])], 1, keepdims=0),
        lambda: case("", 20, "ReduceMin", [X3 > 0]),
        lambda: case("", 13, "Dropout", [X3], 0, 2),
        lambda: case("", 13, "OneHot", [np.int64([0, 2, -1]), np.int64(3), np.float32([2, 5])], 2, axis=0),
        lambda: case("", 13, "Celu", [X3], alpha=2.0),
        lambda: case("", 17, "LayerNormalization", [X3, array(4), array(4)], 2, 3),
        lambda: case("", 22, "Sinh", [np.float32([-89, -0.5, 1e-4, 2])]),
        lambda: case("", 22, "Cosh", [np.float32([-89, -0.5, 1e-4, 2])]),
        lambda: case("", 22, "EyeLike", [np.ones((3, 4), np.int32)], dtype=11, k=1),
    ],
)
def test_what_has_a_definition_is_right(made):
    outcome = run_form(made())
    assert (outcome.kind, outcome.reason) == ("right", "")


def test_nodes_of_one_definition_keep_apart():
    several = merged([case("", 13, "Celu", [X3], alpha=alpha) for alpha in (0.5, 2.0)])
    assert run_form(several).kind == "right"


def test_a_node_says_all_that_it_asks_for():
    model = model_of("Clip", X, constants=[np.float32(-1)])
    ((_, traits),) = nodes_with_traits(model)
    assert traits == [
        ("version", 13),
        ("T", "float32"),
        ("input_input", "computed"),
        ("optional_min", "constant"),
        ("rank", 4),
    ]
    assert list(unknown_nodes(model)) == []


def test_nodes_of_inner_graphs_are_seen():
    value = onnx.ValueInfoProto(name="z")
    branch = helper.make_graph([helper.make_node("NonZero", ["x0"], ["z"])], "branch", [], [value])
    node = helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
    inputs = [helper.make_tensor_value_info("c", 9, ()), helper.make_tensor_value_info("x0", 1, (2, 2))]
    model = helper.make_model(helper.make_graph([node], "graph", inputs, [onnx.ValueInfoProto(name="y")]))
    assert [each.node.op_type for each in unknown_nodes(model)] == ["NonZero", "NonZero"]
