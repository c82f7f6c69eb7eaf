"""The largest of numbers that are all minus infinity is that, and the least of infinities infinity."""

import numpy as np
import pytest
import tvm
from tvm import relax
from zoo import UNOPTIMISED

from tvm_sparse.compiler.own_functions import own_functions


@pytest.mark.parametrize("is_cpu", [True, False])
@pytest.mark.parametrize(("operator", "infinity"), [(relax.op.max, -np.inf), (relax.op.min, np.inf)])
def test_of_infinities(operator, infinity, is_cpu):
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType((2, 3), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit_output(builder.emit(operator(x, 1)))
        builder.emit_func_output(y)
    module = tvm.compile(own_functions(is_cpu)(builder.get()), tvm.target.Target(UNOPTIMISED))
    machine = relax.VirtualMachine(module, tvm.cpu())
    rows = np.float32([[infinity] * 3, [1, 2, infinity]])
    expected = [infinity, 2.0 if infinity < 0 else 1.0]
    assert machine["main"](tvm.runtime.tensor(rows)).numpy().tolist() == expected
