"""The float64 reference against torch, and that its bound is neither missed nor loose enough to hide a bug."""

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_convolutions import random_case

from tvm_sparse.conv.error_bounds import TF32
from tvm_sparse.conv.reference import conv2d, random_arguments, reference
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.errors import VerificationError

SPEC = ConvSpec(1, 3, 6, 6, 4, 3, 3, padding=(1, 1, 1, 1), bias=True, residual=True)


@st.composite
def cases(draw):
    return random_case(lambda options: draw(st.sampled_from(options)))


def torch_conv2d(spec, arguments, weight, dtype):
    """The convolution with its epilogue, computed by torch in `dtype`."""
    top, left, bottom, right = spec.padding
    tensors = {name: torch.from_numpy(value).to(dtype) for name, value in arguments.items()}
    x = torch.nn.functional.pad(tensors["x"], (left, right, top, bottom))
    y = torch.nn.functional.conv2d(
        x, torch.from_numpy(weight).to(dtype), tensors.get("bias"), spec.stride, 0, spec.dilation, spec.groups
    )
    y = y + tensors["residual"] if spec.residual else y
    return (y.clamp(0, spec.relu_max) if spec.relu else y).numpy()


def expected(spec, arguments, weight):
    return reference(spec, arguments["x"], weight, arguments.get("bias"), arguments.get("residual"))


@settings(max_examples=100, derandomize=True)
@given(cases())
def test_agrees_with_torch(case):
    arguments = random_arguments(case.spec, case.seed, case.integers)
    exact = expected(case.spec, arguments, case.weight)
    np.testing.assert_allclose(exact.value, torch_conv2d(case.spec, arguments, case.weight, torch.float64), atol=1e-12)
    assert exact.worst(torch_conv2d(case.spec, arguments, case.weight, torch.float32)) <= 1


def test_tensors_give_the_same_as_arrays():
    arguments, weight = arguments_and_weight()
    zeros = partial(torch.zeros, dtype=torch.float64)
    found = conv2d(SPEC, torch.from_numpy(arguments["x"]), torch.from_numpy(weight), zeros)
    np.testing.assert_allclose(found.numpy(), conv2d(SPEC, arguments["x"], weight), rtol=1e-13)


def arguments_and_weight():
    arguments = random_arguments(SPEC, 1)
    return arguments, np.random.default_rng(2).standard_normal(SPEC.weight_shape).astype(np.float32)


def test_bound_by_hand():
    arguments, weight = arguments_and_weight()
    weight[1] = 0
    weight[2, :, 0] = 0
    magnitude = conv2d(SPEC, np.abs(arguments["x"]), np.abs(weight))
    magnitude += np.abs(arguments["bias"])[None, :, None, None] + np.abs(arguments["residual"].astype(np.float64))
    terms = np.array([27, 0, 18, 27])[None, :, None, None] + 2
    np.testing.assert_allclose(expected(SPEC, arguments, weight).bound, terms * 2.0**-24 * magnitude, rtol=1e-12)


@pytest.mark.parametrize("position", [(0, 0, 0, 0), (0, 3, 5, 5)])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_one_undefined_element_is_infinitely_wrong(position, value):
    arguments, weight = arguments_and_weight()
    exact = expected(SPEC, arguments, weight)
    y = exact.value.astype(np.float32)
    assert exact.check("layer", y) <= 1
    y[position] = value
    assert exact.worst(y) == np.inf


def test_an_error_beyond_the_bound_is_named():
    arguments, weight = arguments_and_weight()
    exact = expected(SPEC, arguments, weight)
    with pytest.raises(VerificationError, match=r"layer 3: .*found 2 times the error bound; allowed: up to 1"):
        exact.check("layer 3", exact.value + 2 * exact.bound)


def test_a_missing_product_is_found():
    """The bound must be far smaller than any one of the products that a wrong kernel drops."""
    arguments, weight = arguments_and_weight()
    exact = expected(SPEC, arguments, weight)
    weight[0, 0, 1, 1] = 0
    assert exact.worst(expected(SPEC, arguments, weight).value) > 1000


def test_a_bound_of_zero_admits_only_the_exact_value():
    spec = ConvSpec(1, 2, 3, 3, 1, 1, 1)
    exact = expected(spec, random_arguments(spec, 0), np.zeros(spec.weight_shape, np.float32))
    assert exact.worst(np.zeros(spec.output_shape, np.float32)) == 0
    assert exact.worst(np.full(spec.output_shape, 1e-30, np.float32)) == np.inf


@pytest.mark.parametrize("scale", [1e-30, 1e-36, 1e-42])
def test_subnormal_products_lie_within_the_bound(scale):
    arguments, weight = arguments_and_weight()
    small = {name: (value * scale).astype(np.float32) for name, value in arguments.items()}
    exact = expected(SPEC, small, (weight * 1e-6).astype(np.float32))
    assert exact.worst(torch_conv2d(SPEC, small, (weight * 1e-6).astype(np.float32), torch.float32)) <= 1


def test_where_float32_overflows_there_is_no_bound():
    arguments, weight = arguments_and_weight()
    arguments["x"][0, 0, 0, 0] = 3e38
    exact = expected(SPEC, arguments, weight)
    y = torch_conv2d(SPEC, arguments, weight, torch.float32)
    assert np.isinf(y).any() and np.isinf(exact.bound).any()
    assert exact.worst(y) <= 1
    # Only the pixels that see the huge element, in the corner of the 6x6 map.
    assert np.isfinite(exact.bound[:, :, 2:]).all()
    y[0, 0, 5, 5] = np.inf
    assert exact.worst(y) == np.inf


def test_arguments_follow_the_spec_and_the_seed():
    names = {"x": SPEC.input_shape, "bias": (SPEC.k,), "residual": SPEC.output_shape}
    drawn = random_arguments(SPEC, 3)
    assert {name: value.shape for name, value in drawn.items()} == names
    assert all(value.dtype == np.float32 for value in drawn.values())
    assert all((value == random_arguments(SPEC, 3)[name]).all() for name, value in drawn.items())
    assert (drawn["x"] != random_arguments(SPEC, 4)["x"]).any()
    whole = random_arguments(SPEC, 3, integers=True)["x"]
    assert (whole == np.round(whole)).all()


def cut_to_tf32(array):
    """10 bits behind the point, the rest cut off."""
    return (array.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


@settings(max_examples=60, derandomize=True)
@given(cases())
def test_products_of_numbers_cut_to_tf32_meet_its_bound(case):
    arguments = random_arguments(case.spec, case.seed, case.integers)
    exact = expected(case.spec, arguments, case.weight)
    cut = {**arguments, "x": cut_to_tf32(arguments["x"])}
    found = torch_conv2d(case.spec, cut, cut_to_tf32(case.weight), torch.float32)
    assert exact.within(TF32, case.weight).worst(found) <= 1


def test_the_bound_of_tf32_finds_what_is_off_by_more():
    """One bit less behind the point is found, and so is what TF32 is not allowed: a bound of float32."""
    x = np.full(SPEC.input_shape, np.float32(1 + 2**-9 - 2**-20))
    weight = np.zeros(SPEC.weight_shape, np.float32)
    weight[:, 0, 1, 1] = x.flat[0]
    spec = ConvSpec(1, 3, 6, 6, 4, 3, 3, padding=(1, 1, 1, 1))
    exact = reference(spec, x, weight)
    once, twice = float(cut_to_tf32(x).flat[0]), 1.0
    for value, in_tf32, in_float32 in ((once, True, False), (twice, False, False), (float(x.flat[0]), True, True)):
        found = np.full(spec.output_shape, value * value)
        assert (exact.within(TF32, weight).worst(found) <= 1) == in_tf32
        assert (exact.worst(found) <= 1) == in_float32
