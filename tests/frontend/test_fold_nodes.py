"""What a model computes of shapes and constants is known before it is compiled, and bounded before it is computed."""

import numpy as np
import onnx
import pytest
import zoo
from onnx import TensorProto, helper, numpy_helper
from test_passes import assert_same

from tvm_sparse.cli import main
from tvm_sparse.errors import ModelError
from tvm_sparse.frontend.model_source import ModelSource
from tvm_sparse.frontend.prepare import prepare

X, W = (1, 4, 9, 9), zoo._random(4, 4, 3, 3)


def graph(nodes, inputs=(), outputs=("y",), name="graph", **constants):
    """A graph of nodes (operator, inputs, outputs, attributes); inputs are names of tensors of floats."""
    return helper.make_graph(
        [
            helper.make_node(op, ins, outs, name=f"{op}_{at}", **attrs)
            for at, (op, ins, outs, attrs) in enumerate(nodes)
        ],
        name,
        list(inputs),
        [each if not isinstance(each, str) else value(each) for each in outputs],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )


def value(name, shape=None, kind=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def model(nodes, opset=17, **constants):
    made = graph(nodes, [value("x", X)], **constants)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def branch(nodes, output="r", **constants):
    return graph(nodes, outputs=[output], name="branch", **constants)


SIZE = [("Shape", ["x"], ["s"], {}), ("Gather", ["s", "at"], ["n"], {"axis": 0}), ("Equal", ["n", "one"], ["is"], {})]
NUMBERS = {"at": np.array(0), "one": np.array(1)}
# Both branches read a tensor of the branch around them, and their results have one name.
INNER = {
    "then_branch": branch([("Mul", ["x", "k"], ["q"], {})], "q"),
    "else_branch": branch([("Neg", ["k"], ["q"], {})], "q"),
}
NESTED = branch([("If", ["is"], ["r"], INNER)], k=np.float32(5))
SUM = graph(
    [("Cast", ["i"], ["i_f"], {"to": TensorProto.FLOAT}), ("Identity", ["on"], ["still"], {}),
     ("Add", ["sum", "x"], ["next"], {}), ("Mul", ["next", "i_f"], ["row"], {})],
    [value("i", (), TensorProto.INT64), value("on", (), TensorProto.BOOL), value("sum", X)],
    [value("still", (), TensorProto.BOOL), value("next", X), value("row", X)],
)  # fmt: skip
RUNNING = graph(
    [("Add", ["sum", "part"], ["next"], {}), ("Relu", ["next"], ["row"], {})],
    [value("sum"), value("part")],
    ["next", "row"],
)
KNOWN = {
    "same padding": model(
        [
            ("Shape", ["x"], ["s"], {}),
            ("Slice", ["s", "two", "four"], ["hw"], {}),
            ("Sub", ["ten", "hw"], ["d"], {}),
            ("Clip", ["d", "zero"], ["c"], {}),
            ("ConstantOfShape", ["four"], ["z"], {"value": numpy_helper.from_array(np.array([0]))}),
            ("Concat", ["z", "nn", "c"], ["p"], {"axis": 0}),
            ("Pad", ["x", "p"], ["t"], {}),
            ("Conv", ["t", "w"], ["y"], {}),
        ],
        two=np.array([2]), four=np.array([4]), ten=np.array(10), zero=np.array(0), nn=np.array([0, 0]), w=W,
    ),
    "then": model(
        [*SIZE, ("If", ["is"], ["y"], {"then_branch": branch([("Squeeze", ["x", "ax"], ["r"], {})], ax=np.array([0])),
                                       "else_branch": branch([("Identity", ["x"], ["r"], {})])})],
        **NUMBERS,
    ),
    "from outside": model(
        [*SIZE, ("Relu", ["x"], ["o"], {}),
         ("If", ["is"], ["y"], {"then_branch": branch([("Identity", ["o"], ["r"], {})]), "else_branch": NESTED})],
        **NUMBERS,
    ),
    "nested": model(
        [*SIZE, ("If", ["is"], ["t"], {"then_branch": NESTED, "else_branch": branch([("Neg", ["x"], ["r"], {})])}),
         ("Conv", ["t", "w"], ["c"], {}), ("Add", ["c", "k0"], ["y"], {})],
        **NUMBERS, w=W, k0=np.float32(1),
    ),
    "loop": model(
        [("Loop", ["count", "true", "x"], ["last", "rows"], {"body": SUM}),
         ("ReduceSum", ["rows", "at"], ["r"], {"keepdims": 0}), ("Add", ["last", "r"], ["y"], {})],
        count=np.array(3), true=np.array(True), at=np.array([0]),
    ),
    "scan": model(
        [("Scan", ["zero", "x"], ["last", "rows"], {"body": RUNNING, "num_scan_inputs": 1, "scan_input_axes": [1],
                                                    "scan_input_directions": [1], "scan_output_axes": [1]}),
         ("Add", ["rows", "last"], ["y"], {})],
        zero=np.zeros((1, 9, 9), np.float32),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", KNOWN)
def test_what_is_known_is_folded(name, tmp_path):
    onnx.save(KNOWN[name], tmp_path / "m.onnx")
    arrays = zoo.inputs_of([X])
    assert_same(prepare(tmp_path / "m.onnx").mod, arrays, zoo.run_onnx(KNOWN[name], *arrays))


BN = {"g": np.full(4, 0.3, np.float32), "b": np.zeros(4, np.float32), "v": np.ones(4, np.float32)}
STANDARDISED = {
    "by hand": model(
        [
            ("ReduceMean", ["c.weight"], ["m"], {"axes": [1, 2, 3]}),
            ("Sub", ["c.weight", "m"], ["d"], {}),
            ("ReduceL2", ["d"], ["l"], {"axes": [1, 2, 3]}),
            ("Div", ["d", "l"], ["t"], {}),
            ("Conv", ["x", "t"], ["y"], {}),
        ],
        **{"c.weight": W},
    ),
    "by a batch norm": model(
        [
            ("Reshape", ["c.weight", "rows"], ["r"], {}),
            ("BatchNormalization", ["r", "g", "b", "b", "v"], ["n", "m1", "v1"], {"training_mode": 1}),
            ("Reshape", ["n", "back"], ["t"], {}),
            ("Conv", ["x", "t"], ["y"], {}),
        ],
        **{"c.weight": W, "rows": np.array([1, 4, 36]), "back": np.array(W.shape)},
        **BN,
    ),
    "by an instance norm": model(
        [
            ("InstanceNormalization", ["c.weight", "g", "b"], ["t"], {}),
            ("Conv", ["x", "t"], ["y"], {}),
        ],
        **{"c.weight": W},
        **BN,
    ),
}


@pytest.mark.parametrize("name", STANDARDISED)
def test_a_standardised_weight_is_its_layers(name, tmp_path):
    onnx.save(STANDARDISED[name], tmp_path / "m.onnx")
    prepared = prepare(tmp_path / "m.onnx")
    assert [layer.name for layer in prepared.layers] == ["c"]
    arrays = zoo.inputs_of([X])
    assert_same(prepared.mod, arrays, zoo.run_onnx(STANDARDISED[name], *arrays))


def test_a_weight_that_is_read_elsewhere_keeps_its_name(tmp_path):
    nodes = [("Neg", ["c.weight"], ["t"], {}), ("Conv", ["x", "t"], ["z"], {}), ("Conv", ["z", "c.weight"], ["y"], {})]
    onnx.save(model(nodes, **{"c.weight": W}), tmp_path / "m.onnx")
    weights = ModelSource(tmp_path / "m.onnx").weights()
    np.testing.assert_array_equal(weights["c"], W)
    np.testing.assert_array_equal(weights["Conv_1"], -W)


LARGE = np.array([2**40])
BOMBS = {
    "range": [("Range", ["n", "big", "one"], ["t"], {})],
    "constant": [("ConstantOfShape", ["bigs"], ["t"], {})],
    "tile": [("Tile", ["ones", "bigs"], ["t"], {})],
    "expand": [("Expand", ["ones", "bigs"], ["t"], {})],
    "pad": [("Pad", ["ones", "pads"], ["t"], {})],
    "one hot": [("OneHot", ["ones", "big", "off"], ["t"], {})],
    "resize": [("Resize", ["map", "", "scales"], ["t"], {})],
    "product": [("Mul", ["row", "column"], ["t"], {})],
}


@pytest.mark.parametrize("name", BOMBS)
def test_sizes_are_known_before_memory_is_taken(name, tmp_path, capsys):
    constants = {
        "n": np.array(0), "one": np.array(1), "big": np.array(2**40), "bigs": LARGE, "ones": np.array([1]),
        "off": np.array([0, 1]), "pads": np.array([0, 2**40]), "map": np.ones((1, 1, 2, 2), np.float32),
        "scales": np.float32([1, 1, 1e6, 1e6]), "row": np.ones((1, 2**17), np.float32),
        "column": np.ones((2**17, 1), np.float32),
    }  # fmt: skip
    nodes = [*BOMBS[name], ("Cast", ["t"], ["f"], {"to": 1}), ("ReduceSum", ["f"], ["s"], {"keepdims": 0})]
    onnx.save(model([*nodes, ("Add", ["x", "s"], ["y"], {})], **constants), tmp_path / "m.onnx")
    assert main.main(["inspect", str(tmp_path / "m.onnx")]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert "tensor t is too large, found (" in line


REFUSED = {
    "negative size": (
        model([("Split", ["x", "s"], ["y", "z"], {"axis": 1})], s=np.array([-1, 5])),
        r"tensor y has an impossible shape, found \(1, -1, 9, 9\); allowed: sizes of 0 or more",
    ),
    "index beyond": (
        model([("Gather", ["a", "i"], ["t"], {}), ("Add", ["x", "t"], ["y"], {})], a=np.zeros(3, np.float32),
              i=np.array(7)),
        r"node Gather_0: Gather of constants cannot be computed \(index 7 is out of bounds",
    ),
    "too many steps": (
        model(
            [("Loop", ["count", "true", "x"], ["y", "rows"], {"body": SUM})],
            count=np.array(10**12), true=np.array(True)
        ),
        "node Loop_0: the Loop has too many steps, found 1000000000000 steps; allowed: 20000 nodes in all",
    ),
    "a name twice": (
        model(
            [*SIZE, ("If", ["is"], ["y"], {each: branch([("Mul", ["x", "one"], ["r"], {})], one=np.float32(2))
                                           for each in ("then_branch", "else_branch")})],
            **NUMBERS,
        ),
        "node If_3: its subgraph has a tensor of a name that is taken, found one; allowed: names of its own",
    ),
    "steps of run time": (
        model(
            [("ReduceSum", ["x"], ["s"], {"keepdims": 0}), ("Cast", ["s"], ["n"], {"to": TensorProto.INT64}),
             ("Loop", ["n", "true", "x"], ["y", "rows"], {"body": SUM})],
            true=np.array(True),
        ),
        "node Loop_2: how often it runs is known at run time only, found Loop; allowed: a loop of constant length",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_one_sentence_says_what_cannot_be(name, tmp_path):
    made, sentence = REFUSED[name]
    onnx.save(made, tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=sentence):
        prepare(tmp_path / "m.onnx")


BRANCHES = (("then_branch", "Relu"), ("else_branch", "Neg"))


def test_a_branch_of_run_time_is_taken_then(tmp_path):
    nodes = [
        ("ReduceSum", ["x"], ["s"], {"keepdims": 0}),
        ("Greater", ["s", "zero"], ["is"], {}),
        ("If", ["is"], ["y"], {name: branch([(op, ["x"], ["r"], {})]) for name, op in BRANCHES}),
    ]
    made = model(nodes, zero=np.float32(0))
    onnx.save(made, tmp_path / "m.onnx")
    module = prepare(tmp_path / "m.onnx").mod
    for sign in (1, -1):
        arrays = [sign * np.abs(zoo.inputs_of([X])[0])]
        assert_same(module, arrays, zoo.run_onnx(made, *arrays))


def test_random_numbers_stay_random(tmp_path):
    made = model([("RandomNormal", [], ["r"], {"shape": [1, 4, 9, 9]}), ("Add", ["x", "r"], ["y"], {})])
    onnx.save(made, tmp_path / "m.onnx")
    with pytest.raises(ModelError, match="RandomNormal"):
        prepare(tmp_path / "m.onnx")
