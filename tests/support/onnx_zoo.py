"""Small ONNX models, and helpers that run models, for processes that do not wait for torch."""

import numpy as np
import onnx
import onnxruntime
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

# What graphs compute is the same without LLVM's optimiser, which takes most of the time.
UNOPTIMISED = {"kind": "llvm", "opt-level": 0}
# The shape of most inputs.
X = (1, 4, 9, 9)


def unchecked():
    """Functions compiled within it check no arguments, which takes LLVM longer than most of what is tested."""
    return tvm.transform.PassContext(config={"tirx.disable_assert": True})


def run_relax(module, *arrays):
    """Outputs of a Relax module on the CPU, as a list of arrays."""
    with unchecked():
        executable = tvm.compile(module, tvm.target.Target(UNOPTIMISED))
    machine = relax.VirtualMachine(executable, tvm.cpu())
    outputs = machine["main"](*[tvm.runtime.tensor(a) for a in arrays])
    return [o.numpy() for o in ([outputs] if hasattr(outputs, "numpy") else outputs)]


def run_onnx(model, *arrays):
    """Outputs of ONNX Runtime, as a list of arrays."""
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {i.name: a for i, a in zip(session.get_inputs(), arrays, strict=True)})


def onnx_model(nodes, weights, inputs, outputs):
    """An `onnx.ModelProto`; `inputs` and `outputs` map names to shapes, `weights` names to arrays."""
    graph = helper.make_graph(
        [helper.make_node(op, ins, outs, name=f"{op}_{i}", **attrs) for i, (op, ins, outs, attrs) in enumerate(nodes)],
        "graph",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    # The oldest format that every supported ONNX Runtime reads.
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return model


def _random(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


_BN = {"s": _random(4), "b": _random(4), "m": _random(4), "v": np.abs(_random(4)) + 0.5}


def _one_conv(size, out, **attributes):
    weights = {"w": _random(4, 4, *size), "bias": _random(4)}
    return onnx_model([("Conv", ["x", "w", "bias"], ["y"], attributes)], weights, {"x": X}, {"y": (1, 4, *out)})


# Name -> ONNX model; every input is X.
ONNX = {
    "pads": _one_conv((3, 3), (11, 9), pads=[0, 1, 4, 1]),
    "auto_pad_upper": _one_conv((3, 2), (5, 9), auto_pad="SAME_UPPER", strides=[2, 1]),
    "auto_pad_lower": _one_conv((4, 4), (9, 5), auto_pad="SAME_LOWER", strides=[1, 2]),
    "auto_pad_valid": _one_conv((3, 3), (7, 7), auto_pad="VALID"),
    "pad_node": onnx_model(
        [("Pad", ["x", "p"], ["t"], {}), ("Conv", ["t", "w"], ["y"], {"strides": [2, 2]})],
        {"p": np.array([0, 0, 0, 0, 0, 0, 1, 1], np.int64), "w": _random(4, 4, 3, 3)},
        {"x": X},
        {"y": (1, 4, 4, 4)},
    ),
    "block": onnx_model(
        [
            ("Conv", ["x", "w1", "b1"], ["c1"], {"pads": [1, 1, 1, 1]}),
            ("BatchNormalization", ["c1", "s", "b", "m", "v"], ["n1"], {}),
            ("Relu", ["n1"], ["r1"], {}),
            ("Conv", ["r1", "w2"], ["c2"], {"auto_pad": "SAME_UPPER"}),
            ("BatchNormalization", ["c2", "s", "b", "m", "v"], ["n2"], {}),
            ("Conv", ["x", "w3"], ["c3"], {}),
            ("Add", ["n2", "c3"], ["a"], {}),
            ("Relu", ["a"], ["y"], {}),
        ],
        {"w1": _random(4, 4, 3, 3), "b1": _random(4), "w2": _random(4, 4, 3, 3) * 2, "w3": _random(4, 4, 1, 1), **_BN},
        {"x": X},
        {"y": X},
    ),
    "unbaked_mask": onnx_model(
        [("Mul", ["w", "mask"], ["wm"], {}), ("Conv", ["x", "wm"], ["y"], {})],
        {"w": _random(4, 4, 3, 3), "mask": (_random(4, 4, 3, 3) > 0).astype(np.float32)},
        {"x": X},
        {"y": (1, 4, 7, 7)},
    ),
}


def inputs_of(shapes):
    rng = np.random.default_rng(1)
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
