"""Transposes are squares in registers, with what is computed of them, and are what they were."""

import numpy as np
import pytest
import tvm
from built_function import computed
from gpu_functions import computing
from tvm import relax, te, tirx, topi

from tvm_sparse.compiler.build_plan import compiled_module
from tvm_sparse.compiler.cpu_loops.schedule_transposes import schedule_transposes
from tvm_sparse.compiler.relax_pipeline import relax_pipeline
from tvm_sparse.scheduling.annotations import TRANSPOSE

# (N, H, W, C) -> (N, C, H, W), and back.
TO_NCHW, TO_NHWC = (0, 3, 1, 2), (0, 2, 3, 1)


def scheduled(*tensors: te.Tensor) -> tirx.PrimFunc:
    """The function of placeholders and what is computed of them, after the pass."""
    func = te.create_prim_func(list(tensors)).with_attr("global_symbol", "main")
    return schedule_transposes(16)(tvm.IRModule({"main": func}))["main"]


def is_in_squares(func: tirx.PrimFunc) -> bool:
    return "tirx.is_scheduled" in func.attrs and TRANSPOSE in func.script()


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("axes", [TO_NCHW, TO_NHWC])
@pytest.mark.parametrize("shape", [(1, 28, 28, 48), (2, 4, 3, 20), (1, 8, 9, 8), (3, 4, 6, 16)])
def test_transposes_are_right(shape, axes, threads):
    """Of vectors of 16, 8 and 4 elements, and of several images."""
    x = te.placeholder(shape, name="x")
    func, array = scheduled(x, topi.transpose(x, axes)), numbers(*shape)
    assert is_in_squares(func)
    assert np.array_equal(computed(func, array, threads=threads), array.transpose(axes))


@pytest.mark.parametrize("axes", [TO_NCHW, TO_NHWC])
def test_what_is_computed_of_a_transpose_is_computed_with_it(axes):
    """A number for each channel, and a tensor that is not transposed."""
    shape = (1, 16, 16, 32)
    result = tuple(shape[axis] for axis in axes)
    vector = (32, 1, 1) if axes == TO_NCHW else (16, 1, 1)
    x, scale, rest = te.placeholder(shape), te.placeholder(vector), te.placeholder(result)
    func = scheduled(x, scale, rest, topi.add(topi.multiply(topi.transpose(x, axes), scale), rest))
    assert is_in_squares(func) and func.script().count("T.sblock(") == 2
    arrays = numbers(*shape), numbers(*vector), numbers(*result)
    expected = arrays[0].transpose(axes) * arrays[1] + arrays[2]
    np.testing.assert_allclose(computed(func, *arrays), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("function", "is_vector"), [("round", True), ("floor", True), ("rsqrt", False), ("atan", False)]
)
def test_functions_of_a_transpose_are_in_squares_if_they_have_vectors(function, is_vector):
    """A quantised tensor of attention is one: slices, transposed, rounded and clipped."""
    x = numbers(1, 4, 24, 16) ** 2
    module = computing(lambda y: getattr(relax.op, function)(relax.op.permute_dims(y, [0, 1, 3, 2])), x.shape)
    target = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3"})
    with target:
        (func,) = (
            each for each in relax_pipeline(target)(module).functions.values() if isinstance(each, tirx.PrimFunc)
        )
    assert (TRANSPOSE in func.script()) == is_vector
    expected = getattr(np, {"round": "rint", "atan": "arctan"}.get(function, function), lambda y: 1 / np.sqrt(y))
    machine = relax.VirtualMachine(compiled_module(module, tvm.target.Target("llvm")), tvm.cpu())
    found = machine["main"](tvm.runtime.tensor(x)).numpy()
    np.testing.assert_allclose(found, expected(x.transpose(0, 1, 3, 2)), rtol=1e-6)


def test_what_has_no_squares_is_left_alone():
    """Sizes that four does not divide, integers, two tensors transposed, nothing transposed, and conditions."""
    odd, x, y = te.placeholder((1, 7, 7, 16)), te.placeholder((8, 8)), te.placeholder((8, 8))
    turned, integers = topi.transpose(x), te.placeholder((8, 8), "int32")
    for tensors in (
        (odd, topi.transpose(odd, TO_NCHW)),
        (integers, topi.transpose(integers)),
        (x, topi.add(x, x)),
        (x, y, topi.multiply(turned, topi.transpose(y))),
        (x, topi.concatenate([turned, turned])),
    ):
        assert "tirx.is_scheduled" not in scheduled(*tensors).attrs
