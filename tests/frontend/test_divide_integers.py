"""Integers that are divided by 0 or -1 end no process, and give what NumPy gives."""

import numpy as np
import pytest
from tvm import relax
from zoo import run_relax

from tvm_sparse.frontend.passes.folding.divide_integers import divide_integers

DIVISORS = np.array([0, 0, -1, -1, 0, 3, -2, 2])


def module_of(operator, dtype, divisor=None):
    """``operator(x, d)``, with a constant divisor where one is given."""
    builder = relax.BlockBuilder()
    x, d = (relax.Var(name, relax.TensorType((2, 8) if name == "x" else (8,), dtype)) for name in "xd")
    with builder.function("main", [x, d] if divisor is None else [x]):
        with builder.dataflow():
            found = builder.emit(operator(x, d if divisor is None else relax.const(divisor, dtype)))
            result = builder.emit_output(found)
        builder.emit_func_output(result)
    return builder.get()


@pytest.mark.parametrize("is_open", [True, False], ids=["open", "constant"])
@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8"])
@pytest.mark.parametrize(
    ("operator", "expected"),
    [
        (relax.op.divide, lambda x, d: (x - np.fmod(x, d)) // d),
        (relax.op.floor_divide, np.floor_divide),
        (relax.op.mod, np.fmod),
        (relax.op.floor_mod, np.mod),
    ],
    ids=["divide", "floor_divide", "mod", "floor_mod"],
)
def test_results_are_numpy_s(operator, expected, dtype, is_open):
    least = np.iinfo(dtype).min
    x = np.stack([np.array([7, least, 5, least, 0, least, 9, 9]), np.full(8, least)]).astype(dtype)
    d = DIVISORS.astype(dtype)
    module = divide_integers(module_of(operator, dtype, None if is_open else d))
    with np.errstate(all="ignore"):
        want = expected(x, d).astype(dtype)
    (found,) = run_relax(module, *([x, d] if is_open else [x]))
    np.testing.assert_array_equal(found, want)


def test_floats_and_known_divisors_stay_as_they_are():
    for dtype, divisor in (("float32", None), ("int32", np.full(8, 3, np.int32))):
        module = module_of(relax.op.divide, dtype, divisor)
        assert divide_integers(module) is module
