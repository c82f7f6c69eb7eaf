"""A layer's weight is found and right however an ONNX file spells it."""

from itertools import pairwise

import linear_zoo
import numpy as np
import onnx
import pytest
import zoo
from onnx import TensorProto, helper, numpy_helper
from test_passes import assert_same

from tvm_sparse.errors import ModelError
from tvm_sparse.frontend.model_source import ModelSource
from tvm_sparse.frontend.prepare import prepare

W = np.where(zoo._random(4, 4, 3, 3) > 0.5, zoo._random(4, 4, 3, 3), 0).astype(np.float32)
NINE = np.array([4, 4, 3, 3])
OUT = {"y": (1, 4, 7, 7)}
CONV = ("Conv", ["x", "t"], ["y"], {})
LINEAR = ("Gemm", ["x", "t", "b"], ["y"], {"transB": 1, "alpha": 0.5, "beta": -2.0})


def conv_model(nodes, **constants):
    return zoo.onnx_model([*nodes, CONV], constants, {"x": zoo.X}, OUT)


def linear_model(nodes, last=LINEAR, **constants):
    constants = {"b": linear_zoo.B, **constants} if "b" in last[1] else constants
    return zoo.onnx_model([*nodes, last], constants, {"x": linear_zoo.X}, {"y": (3, 8)})


FORMS = {
    "identity": conv_model([("Identity", ["c.weight"], ["t"], {})], **{"c.weight": W}),
    "cast": conv_model(
        [("Cast", ["c.weight"], ["t"], {"to": TensorProto.FLOAT})], **{"c.weight": W.astype(np.float16)}
    ),
    "cast_twice": conv_model(
        [
            ("Cast", ["c.weight"], ["h"], {"to": TensorProto.FLOAT16}),
            ("Cast", ["h"], ["t"], {"to": TensorProto.FLOAT}),
        ],
        **{"c.weight": W},
    ),
    "transpose": conv_model(
        [("Transpose", ["c.weight"], ["t"], {"perm": [3, 2, 0, 1]})],
        **{"c.weight": np.ascontiguousarray(W.transpose(2, 3, 1, 0))},
    ),
    "reshape": conv_model([("Reshape", ["c.weight", "s"], ["t"], {})], **{"c.weight": W.reshape(4, 36), "s": NINE}),
    "unsqueeze": conv_model(
        [("Unsqueeze", ["c.weight", "a"], ["t"], {})], **{"c.weight": W[:, :, :1, 0], "a": np.array([-1])}
    ),
    "chain": conv_model(
        [
            ("Identity", ["c.weight"], ["i"], {}),
            ("Reshape", ["i", "s"], ["r"], {}),
            ("Transpose", ["r"], ["t"], {"perm": [1, 0, 2, 3]}),
        ],
        **{"c.weight": W.reshape(-1), "s": NINE},
    ),
    "boolean_mask": conv_model(
        [("Cast", ["mask"], ["m"], {"to": TensorProto.FLOAT}), ("Mul", ["m", "c.weight"], ["t"], {})],
        **{"c.weight": zoo._random(4, 4, 3, 3), "mask": W != 0},
    ),
    "gemm_identity": linear_model([("Identity", ["c.weight"], ["t"], {})], **{"c.weight": linear_zoo.W}),
    "gemm_transpose": linear_model([("Transpose", ["c.weight"], ["t"], {})], **{"c.weight": linear_zoo.W.T.copy()}),
    "matmul_reshape_transpose": linear_model(
        [("Reshape", ["c.weight", "s"], ["r"], {}), ("Transpose", ["r"], ["t"], {"perm": [1, 0]})],
        ("MatMul", ["x", "t"], ["y"], {}),
        **{"c.weight": linear_zoo.W.reshape(-1), "s": np.array([8, 12])},
    ),
}
# The unsqueezed weight has 3x1 taps.
FORMS["unsqueeze"].graph.output[0].type.tensor_type.shape.dim[3].dim_value = 9


def input_of(model):
    return zoo.inputs_of([tuple(dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim)])


@pytest.mark.parametrize("name", FORMS)
def test_a_weight_in_another_form_is_its_layers(name, tmp_path):
    onnx.save(FORMS[name], tmp_path / "m.onnx")
    prepared = prepare(tmp_path / "m.onnx")
    (layer,) = prepared.layers
    assert layer.name == "c", "the name of the parameter, not of the node"
    assert 0 < layer.pattern.nnz < layer.weight.size
    arrays = input_of(FORMS[name])
    assert_same(prepared.mod, arrays, zoo.run_onnx(FORMS[name], *arrays))


def test_weights_of_every_form_are_the_same(tmp_path):
    for name in ("identity", "transpose", "reshape"):
        onnx.save(FORMS[name], tmp_path / "m.onnx")
        np.testing.assert_array_equal(ModelSource(tmp_path / "m.onnx").weights()["c"], W)


def constant_node(**value):
    return helper.make_node("Constant", [], ["c.weight"], **value)


def sparse(array, name, flat):
    indices = np.flatnonzero(array) if flat else np.argwhere(array)
    values = numpy_helper.from_array(array[array != 0], name)
    return helper.make_sparse_tensor(values, numpy_helper.from_array(indices.astype(np.int64)), array.shape)


def without_initializer(*nodes, sparse_initializer=()):
    """The first convolution of the zoo with its weight given otherwise."""
    model = conv_model([("Identity", ["c.weight"], ["t"], {})], **{"c.weight": W})
    del model.graph.initializer[:]
    for node in nodes:
        model.graph.node.insert(0, node)
    model.graph.sparse_initializer.extend(sparse_initializer)
    onnx.checker.check_model(model)
    return model


CONSTANTS = {
    "initializer": (FORMS["identity"], W),
    "node": (without_initializer(constant_node(value=numpy_helper.from_array(W))), W),
    "sparse_node": (without_initializer(constant_node(sparse_value=sparse(W, "", flat=True))), W),
    "sparse_initializer": (without_initializer(sparse_initializer=[sparse(W, "c.weight", flat=False)]), W),
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_constants_may_be_initializers_nodes_or_sparse(name, tmp_path):
    model, weight = CONSTANTS[name]
    onnx.save(model, tmp_path / "m.onnx")
    prepared = prepare(tmp_path / "m.onnx")
    np.testing.assert_array_equal(prepared.layers[0].weight, weight)
    assert prepared.layers[0].name == "c"
    arrays = zoo.inputs_of([zoo.X])
    assert_same(prepared.mod, arrays, zoo.run_onnx(FORMS["identity"], *arrays))


def test_numbers_and_lists_may_be_constants(tmp_path):
    nodes = [
        helper.make_node("Constant", [], ["two"], value_float=2.0),
        helper.make_node("Constant", [], ["shape"], value_ints=[1, 4, 81]),
        helper.make_node("Mul", ["x", "two"], ["t"]),
        helper.make_node("Reshape", ["t", "shape"], ["y"]),
    ]
    model = zoo.onnx_model([("Relu", ["x"], ["y"], {})], {}, {"x": zoo.X}, {"y": (1, 4, 81)})
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    onnx.save(model, tmp_path / "m.onnx")
    arrays = zoo.inputs_of([zoo.X])
    assert_same(prepare(tmp_path / "m.onnx").mod, arrays, zoo.run_onnx(model, *arrays))


def test_a_sparse_tensor_that_is_too_large_is_refused(tmp_path):
    model = without_initializer(sparse_initializer=[sparse(W, "c.weight", flat=True)])
    model.graph.sparse_initializer[0].dims[0] = 2**40
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=r"tensor c\.weight is too large, found \d+ elements"):
        ModelSource(tmp_path / "m.onnx")


def test_a_product_of_constants_that_is_too_large_is_refused(tmp_path):
    sizes = {"a": np.ones((2**20, 1, 1, 1), np.float32), "b": np.ones((1, 2**20, 1, 1), np.float32)}
    onnx.save(conv_model([("Mul", ["a", "b"], ["t"], {})], **sizes), tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=r"tensor t is too large, found .*, 1099511627776 elements"):
        prepare(tmp_path / "m.onnx")


def test_a_long_chain_takes_no_deep_recursion(tmp_path):
    names = ["c.weight", *(f"t{i}" for i in range(3000)), "t"]
    nodes = [("Identity", [before], [after], {}) for before, after in pairwise(names)]
    onnx.save(conv_model(nodes, **{"c.weight": W}), tmp_path / "m.onnx")
    np.testing.assert_array_equal(ModelSource(tmp_path / "m.onnx").weights()["c"], W)


def training(op, inputs, attributes, **constants):
    model = zoo.onnx_model([("Relu", ["x"], ["y"], {})], constants, {"x": zoo.X}, {"y": zoo.X})
    model.graph.node[0].CopyFrom(helper.make_node(op, inputs, ["y"], name="last", **attributes))
    onnx.checker.check_model(model)
    return model


@pytest.mark.parametrize(
    "model",
    [
        training("BatchNormalization", ["x", "s", "b", "m", "v"], {"training_mode": 1}, **zoo._BN),
        training("Dropout", ["x", "", "yes"], {}, yes=np.array(True)),
    ],
)
def test_training_mode_is_refused_by_name(model, tmp_path):
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=r"node last: it was exported in training mode, found .*model\.eval\(\)"):
        ModelSource(tmp_path / "m.onnx")


def save_outside(folder):
    # Saving so takes the data out of the model that it is given.
    model = onnx.ModelProto()
    model.CopyFrom(FORMS["identity"])
    onnx.save(model, folder / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    return folder / "m.onnx"


def relocate(path, location):
    model = onnx.load(path, load_external_data=False)
    (entry,) = [each for each in model.graph.initializer[0].external_data if each.key == "location"]
    entry.value = location
    path.write_bytes(model.SerializeToString())


def test_data_may_be_in_a_file_beside(tmp_path):
    path = save_outside(tmp_path)
    assert (tmp_path / "m.data").stat().st_size >= W.nbytes
    np.testing.assert_array_equal(ModelSource(path).weights()["c"], W)


@pytest.mark.parametrize(
    ("location", "sentence"),
    [
        ("absent.data", r"the file with the data of tensor c\.weight is missing, found absent\.data"),
        ("../m.data", r"the data of tensor c\.weight is outside the model's folder, found \.\./m\.data"),
        ("/etc/hostname", "is outside the model's folder, found /etc/hostname"),
        ("link.data", r"is outside the model's folder, found link\.data"),
    ],
)
def test_data_that_is_missing_or_elsewhere_is_refused(location, sentence, tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    path = save_outside(folder)
    (tmp_path / "m.data").write_bytes((folder / "m.data").read_bytes())
    (folder / "link.data").symlink_to(tmp_path / "m.data")
    relocate(path, location)
    with pytest.raises(ModelError, match=sentence):
        ModelSource(path)


def test_data_that_is_too_short_is_refused(tmp_path):
    path = save_outside(tmp_path)
    (tmp_path / "m.data").write_bytes(b"\0" * 100)
    with pytest.raises(ModelError, match="this is no valid ONNX model"):
        ModelSource(path)
