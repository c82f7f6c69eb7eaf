"""ONNX files that ONNX Runtime reads are read, however old or careless; what cannot be read is said in a sentence."""

import numpy as np
import onnx
import pytest
import zoo
from onnx import TensorProto, helper, numpy_helper
from test_passes import assert_same

from tvm_sparse.errors import ModelError
from tvm_sparse.frontend.model_source import ModelSource
from tvm_sparse.frontend.onnx import external_data
from tvm_sparse.frontend.prepare import prepare

X, W = (1, 4, 9, 9), np.where(zoo._random(4, 4, 3, 3) > 0.5, zoo._random(4, 4, 3, 3), 0).astype(np.float32)


def conv(change=lambda model: None, ir_version=8, opset=17):
    """A convolution of `W` that is changed in one way."""
    model = zoo.onnx_model([("Conv", ["x", "w"], ["y"], {})], {"w": W}, {"x": X}, {"y": (1, 4, 7, 7)})
    model.ir_version, model.opset_import[0].version = ir_version, opset
    change(model)
    return model


def sizes(*given):
    def change(model):
        for dim, size in zip(model.graph.input[0].type.tensor_type.shape.dim, given, strict=True):
            dim.dim_value = size

    return change


def without_shape(field):
    return lambda model: getattr(model.graph, field)[0].type.tensor_type.ClearField("shape")


def sparse(dtype):
    def change(model):
        indices = numpy_helper.from_array(np.flatnonzero(W).astype(dtype), "w_indices")
        values = numpy_helper.from_array(W[W != 0], "w")
        model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, W.shape))
        del model.graph.initializer[:]

    return change


def listed(model):
    """As old files have it: the weight is an input too."""
    model.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, W.shape))


def two_domains(model):
    model.opset_import.add(domain="ai.onnx", version=17)


OPENED = {
    "open sizes of -1": conv(sizes(-1, 4, -1, -1)),
    "open sizes of 0": conv(sizes(0, 4, 0, 9)),
    "input without a shape": conv(without_shape("input")),
    "output without a shape": conv(without_shape("output")),
    "indices of 32 bits": conv(sparse(np.int32)),
    "indices of 16 bits": conv(sparse(np.int16)),
    "version 3": conv(listed, ir_version=3, opset=7),
    "version 3 without the list": conv(ir_version=3, opset=9),
    "two names of a domain": conv(two_domains),
}


@pytest.mark.parametrize("name", OPENED)
def test_it_opens(name, tmp_path):
    onnx.save(OPENED[name], tmp_path / "m.onnx")
    arrays = zoo.inputs_of([X])
    prepared = prepare(tmp_path / "m.onnx", shapes={"x": X})
    assert_same(prepared.mod, arrays, zoo.run_onnx(conv(), *arrays))


def store_outside(tensor, folder, **entries):
    """Put the values of a tensor into a file of its own, whose place is what `entries` say."""
    (folder / tensor.name).write_bytes(tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": tensor.name, **entries}.items():
        tensor.external_data.add(key=key, value=value)


def test_sparse_values_may_be_in_files_beside(tmp_path):
    model = conv(sparse(np.int32))
    for tensor in (model.graph.sparse_initializer[0].values, model.graph.sparse_initializer[0].indices):
        store_outside(tensor, tmp_path)
    onnx.save(model, tmp_path / "m.onnx")
    np.testing.assert_array_equal(ModelSource(tmp_path / "m.onnx").weights()["Conv_0"], W)


def branch(name):
    node = helper.make_node("Add", ["x", name], [f"{name}_sum"])
    tensor = numpy_helper.from_array(np.full(X, 2, np.float32), name)
    return helper.make_graph([node], name, [], [helper.make_tensor_value_info(f"{name}_sum", 1, X)], [tensor])


def test_constants_of_a_branch_may_be_in_files_beside(tmp_path):
    model = zoo.onnx_model([("Relu", ["x"], ["y"], {})], {"is": np.array(True)}, {"x": X}, {"y": X})
    branches = {"then_branch": branch("a"), "else_branch": branch("b")}
    model.graph.node[0].CopyFrom(helper.make_node("If", ["is"], ["y"], **branches))
    for attribute in model.graph.node[0].attribute:
        store_outside(attribute.g.initializer[0], tmp_path)
    onnx.save(model, tmp_path / "m.onnx")
    arrays = zoo.inputs_of([X])
    assert_same(prepare(tmp_path / "m.onnx").mod, arrays, [arrays[0] + 2])


def outside(**entries):
    return lambda model, folder: store_outside(model.graph.initializer[0], folder, **entries)


def two_versions(model, _folder):
    model.opset_import.add(domain="ai.onnx", version=13)


def doubling(model, _folder):
    """Functions, each of which calls the one before twice."""
    for level in range(40):
        name = f"{level - 1}" if level else "Relu"
        nodes = [
            helper.make_node(name, ["a"], ["b"], domain="own" if level else ""),
            helper.make_node(name, ["b"], ["c"], domain="own" if level else ""),
        ]
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
        model.functions.append(helper.make_function("own", f"{level}", ["a"], ["c"], nodes, opsets))
    model.opset_import.add(domain="own", version=1)
    model.graph.node[0].CopyFrom(helper.make_node("39", ["x"], ["y"], domain="own"))


REFUSED = {
    "two versions": (two_versions, "it has several versions of its operators, found 17, 13; allowed: one"),
    "doubling": (doubling, "its functions have too many nodes, found 1099511627776; allowed: up to 100000"),
    "no place": (outside(offset="x"), "the place of the data of tensor w is none, found offset x, length 0; allowed"),
    "far beyond": (outside(offset="9" * 5000), "the place of the data of tensor w is none, found offset 999"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_opened(name, tmp_path):
    change, sentence = REFUSED[name]
    model = conv()
    change(model, tmp_path)
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=sentence):
        ModelSource(tmp_path / "m.onnx")


def test_a_model_of_more_bytes_than_onnx_reads_is_refused(tmp_path, monkeypatch):
    """With weights in another file too, of which its own lists the sizes."""
    monkeypatch.setattr(external_data, "MOST_BYTES", 500)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        model = conv()
        if name == "two":
            store_outside(model.graph.initializer[0], tmp_path / name)
        onnx.save(model, tmp_path / name / "m.onnx")
        with pytest.raises(ModelError, match=r"the model is too large, found \d+ bytes; allowed: up to 500; store its"):
            ModelSource(tmp_path / name / "m.onnx")


def test_an_input_without_a_shape_is_asked_for_one(tmp_path):
    onnx.save(conv(without_shape("input")), tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=r"input x has no shape; give it as --input-shape x:1,3,224,224, in Python"):
        prepare(tmp_path / "m.onnx")


def test_tvm_says_nothing_when_a_model_is_refused(tmp_path, capfd):
    """Its block builder would warn on standard error."""
    model = zoo.onnx_model(
        [("Conv", ["x", "w"], ["t"], {}), ("Relu", ["t"], ["y"], {})], {"w": W}, {"x": X}, {"y": (1, 4)}
    )
    model.graph.node[1].CopyFrom(helper.make_node("Det", ["t"], ["y"]))
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(ModelError, match="Det"):
        prepare(tmp_path / "m.onnx")
    assert capfd.readouterr() == ("", "")
