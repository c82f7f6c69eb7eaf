"""Maps move whole vectors on a GPU; here their code runs on the CPU."""

import numpy as np
import pytest
import tvm
from cuda_emulator import kernels
from gpu_functions import computing, emulated, scheduled
from tvm import relax
from tvm.script import tirx as T

from tvm_sparse.compiler.gpu_loops.schedule_maps import schedule_maps


@pytest.mark.parametrize(
    ("shapes", "axis", "dtype", "vector"),
    [
        ([(2, 7, 7, 64), (2, 7, 7, 128), (2, 7, 7, 8)], 3, "float16", "uint4"),
        ([(2, 5, 3, 24), (2, 5, 3, 20)], 3, "float32", "float4"),
        ([(2, 5, 3, 6), (2, 5, 3, 20)], 3, "float32", "float2"),
        ([(2, 3, 14, 14), (2, 5, 14, 14), (2, 1, 14, 14)], 1, "float32", "float4"),
        ([(2, 3, 14, 7), (2, 5, 14, 7)], 1, "float32", "float2"),
    ],
)
def test_concatenations(shapes, axis, dtype, vector):
    rng = np.random.default_rng(0)
    inputs = {f"x{i}": rng.normal(size=shape).astype(dtype) for i, shape in enumerate(shapes)}
    expected = np.concatenate(list(inputs.values()), axis)
    module = computing(lambda *taken: relax.op.concat(list(taken), axis), *shapes, dtype=dtype)
    (func,) = scheduled(module, schedule_maps)
    found, source = emulated(func, inputs, expected.shape)
    np.testing.assert_array_equal(found, expected)
    assert f"*({vector}*)" in kernels(source)
    assert "for (" not in kernels(source)


def test_sums_with_a_bias_of_channels():
    """A tensor that a map reads along other axes only has one value for a whole vector."""
    rng = np.random.default_rng(0)
    inputs = {
        "x0": rng.normal(size=(2, 6, 4, 10)).astype(np.float32),
        "x1": rng.normal(size=(6, 1, 1)).astype(np.float32),
    }
    module = computing(lambda x, bias: relax.op.nn.relu(relax.op.add(x, bias)), (2, 6, 4, 10), (6, 1, 1))
    (func,) = scheduled(module, schedule_maps)
    found, source = emulated(func, inputs, (2, 6, 4, 10))
    np.testing.assert_array_equal(found, np.maximum(inputs["x0"] + inputs["x1"], 0))
    assert "*(float4*)" in kernels(source)


def test_choices_of_half_precision():
    """TVM has no CUDA for more than four truth values."""
    rng = np.random.default_rng(0)
    # The constant is an argument as well.
    inputs = {"x0": rng.normal(size=(3, 16)).astype(np.float16), "param_0": np.zeros((), np.float16)}

    def relu(x):
        zero = relax.const(0, "float16")
        return relax.op.where(relax.op.less(x, zero), zero, x)

    (func,) = scheduled(computing(relu, (3, 16), dtype="float16"), schedule_maps)
    found, source = emulated(func, inputs, (3, 16))
    np.testing.assert_array_equal(found, np.maximum(inputs["x0"], 0))
    assert "uint4" not in kernels(source)


@pytest.mark.parametrize(
    ("shapes", "dtype", "vector", "vectors"),
    [
        ([(2, 3, 4, 24), (2, 3, 4, 24)], "float32", "float4", 3),
        ([(2, 3, 14, 14), (2, 3, 1, 1)], "float32", "float2", 2),
        ([(2, 4, 5, 8), (2, 1, 1, 8)], "float32", "float4", 3),
        ([(2, 4, 5, 16), (16,)], "float16", "uint4", 3),
    ],
)
def test_functions_are_called_one_by_one(shapes, dtype, vector, vectors):
    """What they take and give is moved as vectors; what has no such axis is read as it is."""
    rng = np.random.default_rng(0)
    inputs = {f"x{i}": rng.normal(scale=5, size=shape).astype(dtype) for i, shape in enumerate(shapes)}
    module = computing(lambda x, gate: relax.op.multiply(x, relax.op.sigmoid(gate)), *shapes, dtype=dtype)
    (func,) = scheduled(module, schedule_maps)
    found, source = emulated(func, inputs, shapes[0])
    x, gate = (each.astype(np.float64) for each in inputs.values())
    np.testing.assert_allclose(found, x / (1 + np.exp(-gate)), rtol=4 * np.finfo(dtype).eps, atol=1e-6)
    # Each vector is read at one place and written at another.
    assert kernels(source).count(f"*({vector}*)") == 2 * vectors


@pytest.mark.parametrize(
    ("compute", "shape"),
    [
        (lambda x: relax.op.permute_dims(x, [0, 2, 1]), (2, 8, 8)),
        (lambda x: relax.op.multiply(relax.op.exp(x), relax.op.permute_dims(x, [0, 2, 1])), (2, 8, 8)),
        (lambda x: relax.op.exp(relax.op.concat([x, x], 2)), (2, 8, 8)),
        (relax.op.exp, (5, 7, 3)),
        (lambda x: relax.op.sum(x, [2]), (2, 8, 8)),
        (lambda x: relax.op.add(x, x), (5, 7, 3)),
    ],
    ids=["transpose", "elsewhere", "condition", "function", "sum", "odd"],
)
def test_others_are_left_to_tvm(compute, shape):
    assert scheduled(computing(compute, shape), schedule_maps) == []


def test_what_has_its_threads_is_left():
    """As TVM's scatter_nd for a GPU, whose block has no axes."""

    @T.prim_func(s_tir=True)
    def scatter(x: T.Buffer((8,), "float32"), y: T.Buffer((8,), "float32")):
        with T.sblock("root"), T.sblock("scatter_nd_gpu"):
            T.reads()
            T.writes()
            thread = T.launch_thread("threadIdx.x", 8)
            y[thread] = x[thread]

    assert scheduled(tvm.IRModule({"scatter": scatter}), schedule_maps) == []
