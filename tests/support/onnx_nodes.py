"""Models of one ONNX node, and what the compiler makes of them beside onnx's reference evaluator."""

import numpy as np
import onnx
import onnx_zoo
from onnx import TensorProto, helper, numpy_helper, shape_inference
from onnx.reference import ReferenceEvaluator

from tvm_sparse.frontend.onnx.import_model import import_onnx


def one_node(op, inputs, constants=None, opset=22, dtype=None, outputs=1, **attributes):
    """A model of the node `op`, named ``node``, of opset `opset`.

    `inputs` are arrays by name, None where one is left out; those of `constants` too, which come behind them and are
    constants of the model. `dtype` is the output's, the first input's where it is None.
    """
    constants = constants or {}
    names = [name if value is not None else "" for name, value in {**inputs, **constants}.items()]
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype or next(iter(inputs.values())).dtype))
    results = ["y", *(f"y{index}" for index in range(1, outputs))]
    node = helper.make_node(op, names, results, name="node", **attributes)
    values = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in inputs.items()
        if array is not None
    ]
    tensors = [numpy_helper.from_array(np.asarray(each), name) for name, each in constants.items() if each is not None]
    # All but the first are indices.
    kinds = [kind, *[TensorProto.INT64] * (outputs - 1)]
    outs = [helper.make_tensor_value_info(*each, None) for each in zip(results, kinds, strict=True)]
    graph = helper.make_graph([node], "node", values, outs, tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    return shape_inference.infer_shapes(model)


def imported(model):
    """The Relax module of `model`, which stays as it is."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return import_onnx("m.onnx", copy, {})


def runtime(model, inputs):
    """What ONNX Runtime computes, for what the reference evaluator has wrong."""
    return onnx_zoo.run_onnx(model, *(array for array in inputs.values() if array is not None))[0]


def assert_right(model, inputs, wanted=None, tolerance=1e-5):
    """The compiled `model` computes of arrays by name what onnx's reference evaluator does, or `wanted`."""
    given = {name: array for name, array in inputs.items() if array is not None}
    if wanted is None:
        (wanted,) = ReferenceEvaluator(model).run(None, given)
    (found,) = onnx_zoo.run_relax(imported(model), *given.values())
    assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)


def numbers(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)
