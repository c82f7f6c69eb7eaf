"""RNN, GRU and LSTM layers of ONNX models, whatever their attributes, are those of ONNX Runtime."""

import numpy as np
import onnx
import pytest
import zoo
from onnx import TensorProto, helper, numpy_helper
from parameters import sampled
from test_passes import assert_same

from tvm_sparse.errors import ModelError
from tvm_sparse.frontend.prepare import prepare

STEPS, BATCH, INPUTS, HIDDEN = 3, 2, 4, 3
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def layer(kind, optional=(), outputs="Y Y_h", opset=17, lengths=None, **attributes):
    """A model of one layer; `optional` are the inputs that it has beside X, W and R."""
    directions = 2 if attributes.get("direction") == "bidirectional" else 1
    gates, states = GATES[kind] * HIDDEN, (directions, BATCH, HIDDEN)
    layout = attributes.get("layout", 0)
    x, state = ((BATCH, STEPS, INPUTS), (BATCH, directions, HIDDEN)) if layout else ((STEPS, BATCH, INPUTS), states)
    shapes = {
        "W": (directions, gates, INPUTS),
        "R": (directions, gates, HIDDEN),
        "B": (directions, 2 * gates),
        "lengths": (BATCH,),
        "h": state,
        "c": state,
        "P": (directions, 3 * HIDDEN),
    }
    generator = np.random.default_rng(0)
    arrays = {name: generator.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    arrays["lengths"] = np.array([STEPS] * BATCH if lengths is None else lengths, np.int32)
    inputs = [name if name in ("W", "R", *optional) else "" for name in shapes]
    inputs = inputs[: 7 if kind == "LSTM" else 5]
    used = {name: array for name, array in arrays.items() if name in inputs}
    wanted = outputs.split(" ")
    ranks = {"Y": 4, "Y_h": 3, "Y_c": 3}
    graph = helper.make_graph(
        [helper.make_node(kind, ["x", *inputs], wanted, name="layer", hidden_size=HIDDEN, **attributes)],
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * ranks[name]) for name in wanted if name],
        [numpy_helper.from_array(array, name) for name, array in used.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


LAYERS = {
    "rnn": layer("RNN"),
    "rnn of all": layer("RNN", ["B", "h"], direction="bidirectional", activations=["Relu", "Affine"],
                        activation_alpha=[0.5], activation_beta=[0.1]),
    "gru": layer("GRU", ["B"], outputs=" Y_h"),
    "gru backwards": layer("GRU", ["B", "h", "lengths"], direction="reverse", linear_before_reset=1),
    "gru both": layer("GRU", ["h"], direction="bidirectional", linear_before_reset=1, clip=0.5),
    "gru of others": layer("GRU", ["B"], activations=["HardSigmoid", "ScaledTanh"], activation_alpha=[0.3, 1.5],
                           activation_beta=[0.4, 0.7]),
    "lstm": layer("LSTM", opset=11),
    "lstm of all": layer("LSTM", ["B", "h", "c", "P"], outputs="Y Y_h Y_c", direction="bidirectional"),
    "lstm backwards": layer("LSTM", ["B", "c", "lengths"], outputs="  Y_c", direction="reverse", clip=0.4),
    "lstm coupled": layer("LSTM", ["B"], input_forget=1, activations=["Sigmoid", "Softsign", "LeakyRelu"],
                          activation_alpha=[0.2]),
    "lstm elu": layer("LSTM", ["B"], activations=["sigmoid", "Elu", "Softplus"]),
}  # fmt: skip


@pytest.mark.parametrize("name", sampled(LAYERS, [*LAYERS][::2]))
def test_layers_are_those_of_onnx_runtime(name, tmp_path):
    onnx.save(LAYERS[name], tmp_path / "m.onnx")
    arrays = [np.random.default_rng(1).standard_normal((STEPS, BATCH, INPUTS)).astype(np.float32)]
    assert_same(prepare(tmp_path / "m.onnx").mod, arrays, zoo.run_onnx(LAYERS[name], *arrays))


@pytest.mark.parametrize("kind", GATES)
def test_batches_may_come_first(kind, tmp_path):
    """ONNX Runtime has no such layers: the same layer on swapped axes."""
    onnx.save(layer(kind, ["B"], layout=1), tmp_path / "m.onnx")
    (x,) = arrays = [np.random.default_rng(1).standard_normal((BATCH, STEPS, INPUTS)).astype(np.float32)]
    y, state = zoo.run_onnx(layer(kind, ["B"]), np.ascontiguousarray(x.swapaxes(0, 1)))
    assert_same(prepare(tmp_path / "m.onnx").mod, arrays, [y.transpose(2, 0, 1, 3), state.swapaxes(0, 1)])


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (layer("GRU", ["lengths"], lengths=[3, 2]), r"node layer: its sequences may end early, found \[3, 2\]; allow"),
        (layer("RNN", activations=["Swish"]), "node layer: its activation is unknown, found Swish; allowed: relu"),
        (layer("RNN", activations=["Affine"]), "node layer: its activation Affine has no parameters; give activ"),
        (layer("LSTM", activations=["Tanh"]), "node layer: it has another number of activations, found 1; allowed: 3"),
        (layer("LSTM", direction="sideways"), "node layer: its direction is unknown, found sideways; allowed: forw"),
    ],
)
def test_layers_that_are_refused(model, sentence, tmp_path):
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=sentence):
        prepare(tmp_path / "m.onnx")


def test_sequences_that_are_too_long_are_refused(tmp_path):
    model = layer("RNN")
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 5000
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(ModelError, match="node layer: its sequence is too long, found 5000 steps; allowed: up to 2048"):
        prepare(tmp_path / "m.onnx")
