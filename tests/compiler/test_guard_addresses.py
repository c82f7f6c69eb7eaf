"""Whatever the data, code of TVM's operators stays within tensors, and conversions to integers give one."""

import numpy as np
import pytest
import tvm
from tvm import relax, te, topi

from tvm_sparse.compiler.rewriting.guard_addresses import guard_addresses

TARGET = tvm.target.Target({"kind": "llvm", "opt-level": 3})


def run(build, *arrays):
    """What the operator that `build` makes of inputs gives, its addresses guarded."""
    builder = relax.BlockBuilder()
    inputs = [relax.Var(f"x{i}", relax.TensorType(each.shape, str(each.dtype))) for i, each in enumerate(arrays)]
    with builder.function("main", inputs):
        builder.emit_func_output(builder.emit(build(builder, *inputs)))
    with TARGET:
        module = guard_addresses(relax.transform.LegalizeOps()(builder.get()))
    machine = relax.VirtualMachine(tvm.compile(module, TARGET), tvm.cpu())
    return machine["main"](*map(tvm.runtime.tensor, arrays)).numpy()


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8"])
def test_a_load_is_clamped(dtype):
    x, info = np.arange(300, dtype=np.float32), np.iinfo(dtype)
    i = np.array([0, 99, info.min, info.max, info.max - 1], dtype)
    found = run(lambda _, x, i: relax.op.take(x, i, 0), x, i)
    np.testing.assert_array_equal(found, x[np.clip(i.astype("int64"), 0, 299)])


def test_a_store_is_clamped():
    x, i, u = np.zeros(5, np.float32), np.array([7, 2**32]), np.ones(2, np.float32)
    found = run(lambda _, *inputs: relax.op.scatter_elements(*inputs, 0), x, i, u)
    np.testing.assert_array_equal(found, [0, 0, 0, 0, 1])


def test_an_index_of_an_index_is_clamped():
    def nested(builder, x, i):
        def compute(x, i):
            return te.compute((4,), lambda n: x[i[i[n]]])

        return builder.call_te(compute, x, i)

    found = run(nested, np.arange(4, dtype=np.float32), np.array([2**40, 1, -5, 2]))
    np.testing.assert_array_equal(found, [2, 1, 3, 0])


@pytest.mark.parametrize("source", ["float32", "float64", "float16"])
@pytest.mark.parametrize("target", ["int32", "int64", "int8", "uint8", "uint32"])
def test_conversions_to_integers_are_defined(source, target):
    x = np.array([0, 1.5, -1.5, 100, np.nan, np.inf, -np.inf, -0.0] * 9, source)
    found = run(lambda builder, x: builder.call_te(lambda x: topi.cast(x, target), x), x)
    is_number = np.isfinite(x) & (x >= (0 if target[0] == "u" else -9))
    np.testing.assert_array_equal(found[is_number], x[is_number].astype(target))
    if target in ("int32", "int64"):
        info = np.iinfo(target)
        assert found[4] == found[6] == info.min
        assert found[5] > info.max / 1.01
    assert all((row == found[:8]).all() for row in found.reshape(-1, 8)), "the same in vectors and behind them"
