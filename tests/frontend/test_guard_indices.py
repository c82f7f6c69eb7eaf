"""Indices of models are in range, are constants that are refused, or come out of `main` to be looked at."""

import numpy as np
import onnx
import pytest
import torch
import tvm
import zoo
from onnx import TensorProto, helper, numpy_helper
from torch import nn
from tvm import relax

from tvm_sparse.conv.index_check import IndexCheck
from tvm_sparse.errors import ModelError
from tvm_sparse.frontend.model_source import ModelSource
from tvm_sparse.frontend.passes.indices.guard_indices import guard_indices
from tvm_sparse.frontend.passes.indices.settle_checks import settle_checks
from tvm_sparse.frontend.prepare import prepare

X = (2, 3, 8)


def onnx_file(folder, nodes, constants, *inputs):
    """A model of x and int64 inputs with the given shapes; its result is y."""
    infos = [helper.make_tensor_value_info("x", TensorProto.FLOAT, X)]
    infos += [helper.make_tensor_value_info(name, TensorProto.INT64, shape) for name, shape in inputs]
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    result = helper.make_tensor_value_info("y", TensorProto.UNDEFINED, None)
    graph = helper.make_graph(nodes, "graph", infos, [result], tensors)
    path = folder / "model.onnx"
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    onnx.save(onnx.shape_inference.infer_shapes(model), path)
    return path


def node(kind, *inputs, **attributes):
    return helper.make_node(kind, inputs, ["y"], name="here", **attributes)


class Of(nn.Module):
    def __init__(self, function, **buffers):
        super().__init__()
        self.function = function
        for name, value in buffers.items():
            self.register_buffer(name, value)
        self.eval()

    def forward(self, *inputs):
        return self.function(self, *inputs)


def of_torch(function, *inputs, **buffers):
    return ModelSource(Of(function, **buffers)).relax_module(inputs)


@pytest.mark.parametrize("name", ["relu", "classifier", "residual", "between"])
def test_models_without_indices_are_left_as_they_are(name):
    module, shapes = zoo.TORCH[name]
    imported = ModelSource(module).relax_module(tuple(torch.zeros(shape) for shape in shapes))
    guarded, checks = guard_indices(imported)
    assert guarded.same_as(imported)
    assert not checks


@pytest.mark.parametrize(
    ("kind", "constants", "attributes", "found", "allowed"),
    [
        ("Gather", {"i": [0, 8]}, {"axis": 2}, "8", "-8 to 7"),
        ("GatherElements", {"i": np.full(X, -4)}, {"axis": 1}, "-4", "-3 to 2"),
        ("GatherND", {"i": [[1, 2], [0, 3]]}, {}, "3", "-3 to 2"),
        ("ScatterElements", {"i": np.full(X, 9), "u": np.ones(X, np.float32)}, {"axis": 2}, "9", "-8 to 7"),
        ("ScatterND", {"i": [[2, 0, 0]], "u": np.ones(1, np.float32)}, {}, "2", "-2 to 1"),
    ],
)
def test_constant_indices_are_checked_when_compiled(kind, constants, attributes, found, allowed, tmp_path):
    path = onnx_file(tmp_path, [node(kind, "x", *constants, **attributes)], constants)
    with pytest.raises(ModelError, match=rf"node here \({kind}\): .*found {found}; allowed: {allowed}"):
        prepare(path)


def test_constant_coordinates_stay_int64(tmp_path):
    """TVM's GatherND takes no others."""
    i, x = np.array([[1, 2], [0, -3]]), np.random.rand(*X).astype(np.float32)
    module, checks = guard_indices(
        ModelSource(onnx_file(tmp_path, [node("GatherND", "x", "i")], {"i": i})).relax_module()
    )
    assert not checks
    np.testing.assert_array_equal(zoo.run_relax(module, x)[0], x[tuple(i.T)])


def test_computed_constants_are_checked_when_compiled():
    def function(model, x):
        return x[:, :, model.i + model.i]

    where = r"operator index_select, index_select: a constant index of it is out of range, found 8; allowed: -8 to 7"
    with pytest.raises(ModelError, match=where):
        prepare(Of(function, i=torch.tensor([0, 4])), torch.zeros(X))
    prepared = prepare(Of(function, i=torch.tensor([0, 3])), torch.zeros(X))
    assert not prepared.checks
    assert isinstance(prepared.mod["main"].ret_ty, relax.TensorType)


def test_constant_negative_indices_of_torch_count_from_the_end():
    x = np.arange(48, dtype=np.float32).reshape(X)
    module, checks = guard_indices(of_torch(lambda m, x: x[:, :, m.i], torch.zeros(X), i=torch.tensor([-1, 0, -8])))
    assert not checks
    np.testing.assert_array_equal(zoo.run_relax(module, x)[0], x[:, :, [-1, 0, -8]])


def bounded(module, *arrays):
    """The checks of a module after all passes on indices, its result, and the bounds beside it."""
    module, checks = settle_checks(*guard_indices(module))
    result, bounds = zoo.run_relax(module, *arrays)
    return checks, result, bounds.tolist()


def test_indices_are_clamped_and_told():
    x, i = np.random.rand(*X).astype(np.float32), np.array([7, -8, 3])
    module = of_torch(lambda m, x, i: x[:, :, i], torch.zeros(X), torch.zeros(3, dtype=torch.int64))
    checks, result, bounds = bounded(module, x, i)
    assert checks == [IndexCheck("operator index_select, index_select", ((-8, 7),))]
    assert bounds == [-8, 7]
    np.testing.assert_array_equal(result, x[:, :, i])
    _, result, bounds = bounded(module, x, np.array([8, -9, 2**32 + 1]))
    assert bounds == [-9, 2**32 + 1]
    np.testing.assert_array_equal(result, x[:, :, [7, 0, 7]])


def test_each_coordinate_has_its_own_range(tmp_path):
    path = onnx_file(tmp_path, [node("GatherND", "x", "i")], {}, ("i", (4, 2)))
    x, i = np.random.rand(*X).astype(np.float32), np.array([[0, 2], [1, -3], [-2, 0], [1, 1]])
    checks, result, bounds = bounded(ModelSource(path).relax_module(), x, i)
    assert checks == [IndexCheck("node here (GatherND)", ((-2, 1), (-3, 2)))]
    assert bounds == [-2, -3, 1, 2]
    np.testing.assert_array_equal(result, x[tuple(i.T)])


@pytest.mark.parametrize(
    ("function", "low"),
    [
        (lambda m, x, i: x.index_select(2, i), 0),
        (lambda m, x, i: nn.functional.embedding(i, x[0]), 0),
        (lambda m, x, i: x[:, :, i], -8),
    ],
    ids=["index_select", "embedding", "index"],
)
def test_negative_indices_are_errors_where_torch_says_so(function, low):
    _, (check,) = guard_indices(of_torch(function, torch.zeros(X), torch.zeros(2, dtype=torch.int64)))
    assert check.ranges[0][0] == low


def test_several_checks_become_one_result():
    def function(model, x, i, j):
        return x[:, i], x[:, :, j]

    ones = torch.zeros(2, dtype=torch.int64)
    prepared = prepare(Of(function), (torch.zeros(X), ones, ones))
    assert [each.ranges for each in prepared.checks] == [((-3, 2),), ((-8, 7),)]
    assert [tuple(map(int, each.shape)) for each in prepared.mod["main"].ret_ty.fields][2:] == [(4,)]


@pytest.mark.parametrize(
    ("kind", "indices", "updates"),
    [("ScatterElements", (2, 1, 8), (2, 1, 8)), ("ScatterElements", X, (2, 3, 7)), ("GatherElements", (3, 3, 8), None)],
)
def test_indices_beside_the_data_are_refused(kind, indices, updates, tmp_path):
    constants = {"u": np.ones(updates, np.float32)} if updates else {}
    path = onnx_file(tmp_path, [node(kind, "x", "i", *constants, axis=2)], constants, ("i", indices))
    with pytest.raises(ModelError):
        prepare(path)


def branching(index):
    """``main(x, i, c)`` that takes elements of x in a branch."""
    builder = relax.BlockBuilder()
    x, i = relax.Var("x", relax.TensorType((8,), "float32")), relax.Var("i", relax.TensorType((2,), "int64"))
    c = relax.Var("c", relax.TensorType((), "bool"))
    with builder.function("main", [x, i, c]):
        taken = relax.op.take(x, i if index is None else relax.const(np.array(index)), 0)
        other = relax.op.zeros((2,), "float32")
        branches = [relax.SeqExpr([], each) for each in (taken, other)]
        builder.emit_func_output(builder.emit(relax.If(c, *branches)))
    return builder.get()


def test_indices_in_branches_are_constants():
    module = branching([0, 7])
    assert guard_indices(module)[0].same_as(module)
    with pytest.raises(ModelError, match="out of range, found 8"):
        guard_indices(branching([0, 8]))
    with pytest.raises(ModelError, match="in a branch, are known at run time only"):
        guard_indices(branching(None))


def test_an_empty_tensor_has_no_elements():
    x = relax.Var("x", relax.TensorType((0, 4), "float32"))
    i = relax.Var("i", relax.TensorType((2,), "int64"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, i]):
        builder.emit_func_output(builder.emit(relax.op.take(x, i, 0)))
    with pytest.raises(ModelError, match="an empty tensor"):
        guard_indices(builder.get())


def test_a_half_precision_model_keeps_its_bounds():
    module = Of(lambda m, x, i: x[:, i] * 2)
    prepared = prepare(module, (torch.zeros(X), torch.zeros(2, dtype=torch.int64)), dtype="float16")
    kinds = [str(each.dtype) for each in prepared.mod["main"].ret_ty.fields]
    assert kinds == ["float16", "int64"]
    assert isinstance(prepared.mod, tvm.IRModule)
