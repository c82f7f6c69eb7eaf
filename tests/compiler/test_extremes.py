"""The largest of numbers that are all minus infinity is that, and the least of infinities infinity; NaN stays NaN."""

from functools import partial

import numpy as np
import pytest
import tvm
from gpu_functions import computing, emulated, scheduled
from onnx_nodes import imported, one_node
from tvm import relax
from zoo import run_relax

from tvm_sparse.compiler.build_plan import compiled_module
from tvm_sparse.compiler.gpu_loops.schedule_maps import schedule_maps
from tvm_sparse.compiler.relax_pipeline import own_functions


@pytest.mark.parametrize("is_cpu", [True, False])
@pytest.mark.parametrize(("operator", "infinity"), [(relax.op.max, -np.inf), (relax.op.min, np.inf)])
def test_of_infinities(operator, infinity, is_cpu):
    rows = np.float32([[infinity] * 3, [1, 2, infinity]])
    module = own_functions(is_cpu)(computing(partial(operator, axis=1), rows.shape))
    assert run_relax(module, rows)[0].tolist() == [infinity, 2.0 if infinity < 0 else 1.0]


@pytest.mark.parametrize("shape", [(3,), (2, 1), (1, 1), ()])
@pytest.mark.parametrize("name", ["maximum", "minimum"])
def test_of_tensors_of_other_shapes(name, shape):
    x, y = np.float32([[np.nan, 1, -np.inf], [4, np.nan, np.inf]]), np.full(shape, 2, np.float32)
    y.reshape(-1)[-1] = np.nan
    module = own_functions(is_cpu=True)(computing(getattr(relax.op, name), x.shape, shape))
    np.testing.assert_array_equal(run_relax(module, x, y)[0], getattr(np, name)(x, y))


@pytest.mark.parametrize("operator", ["Max", "Min"])
def test_of_three_tensors_of_a_file(operator):
    numbers = np.float32([np.nan, np.inf, -np.inf, 0, 7])
    inputs = dict(zip("abc", np.meshgrid(numbers, numbers, numbers, sparse=True), strict=True))
    found = run_relax(own_functions(is_cpu=True)(imported(one_node(operator, inputs))), *inputs.values())
    wanted = {"Max": np.maximum, "Min": np.minimum}[operator]
    np.testing.assert_array_equal(found[0], wanted(wanted(*list(inputs.values())[:2]), inputs["c"]))


def clipped_often(x, dtype):
    for _ in range(12):
        x = relax.op.nn.relu(relax.op.multiply(relax.op.clip(x, -1, 2), relax.const(1.5, dtype)))
    return x


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_a_row_of_clips_reads_each_once(dtype):
    """On a CPU, and in vectors on a GPU. Their code doubled with each; twelve would not end."""
    x = np.linspace(-3, 3, 64).astype(dtype)
    x[:4] = np.nan, np.inf, -np.inf, -0.0
    module = computing(partial(clipped_often, dtype=dtype), x.shape, dtype=dtype)
    wanted = x
    for _ in range(12):
        wanted = np.maximum(np.clip(wanted, -1, 2) * x.dtype.type(1.5), 0)
    machine = relax.VirtualMachine(compiled_module(module, tvm.target.Target("llvm")), tvm.cpu())
    np.testing.assert_array_equal(machine["main"](tvm.runtime.tensor(x)).numpy(), wanted)
    # The emulator has no vectors of float64.
    if dtype != "float64":
        (func,) = scheduled(own_functions(is_cpu=False)(module), schedule_maps)
        found, source = emulated(func, {func.params[0].name: x}, x.shape)
        np.testing.assert_array_equal(found, wanted)
        assert source.count(" tvm_sparse_bounded_") < 30
