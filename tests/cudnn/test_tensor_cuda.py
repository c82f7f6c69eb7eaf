"""Convolutions as three products in TF32: the kernel that splits the input, and what cuDNN makes of it."""

from dataclasses import replace

import numpy as np
import pytest
from fake_cudnn import run
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from random_convolutions import random_case

from tvm_sparse.compiler.predict import predicted
from tvm_sparse.conv import reference, tf32_parts
from tvm_sparse.conv.error_bounds import EXACT, TF32, THREE_TF32
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.schedules import dense_cudnn, tensor_cuda
from tvm_sparse.schedules.dense_cudnn import CudnnSpace
from tvm_sparse.schedules.lookup import arithmetic_of, family_of, is_exact, precision_of
from tvm_sparse.schedules.tensor_cuda import TensorSpace
from tvm_sparse.scheduling.kernel import apply_decisions
from tvm_sparse.scheduling.space import NotApplicable
from tvm_sparse.target.gpu import gpu_info
from tvm_sparse.target.resolve import resolve_target

CUDA = resolve_target('{"kind":"cuda","arch":"sm_90"}')
SPEC = ConvSpec(2, 36, 7, 9, 8, 3, 3, padding=(1, 1, 1, 1), bias=True, residual=True, relu=True)
POINTWISE = ConvSpec(3, 40, 9, 7, 12, 1, 1, stride=(2, 3))
UNEVEN = ConvSpec(2, 5, 8, 8, 4, 3, 3, stride=(2, 2), padding=(0, 1, 2, 0), relu=True)
IMAGE = ConvSpec(1, 3, 8, 8, 8, 3, 3, padding=(1, 1, 1, 1))
LARGEST = np.finfo(np.float32).max


def space_of(spec):
    return TensorSpace(spec, gpu_info(CUDA))


def weight_of(spec, density=0.4):
    rng = np.random.default_rng(0)
    return np.where(rng.random(spec.weight_shape) < density, rng.standard_normal(spec.weight_shape), 0).astype("f4")


def worst(kernel, spec, weight, arithmetic, seed=0, integers=False):
    arguments = reference.random_arguments(spec, seed, integers)
    expected = reference.reference(spec, weight=weight, **arguments)
    return expected.within(arithmetic, weight).worst(run(kernel, spec, arguments))


def test_random_convolutions_are_right(fake):
    @settings(max_examples=25, derandomize=True, suppress_health_check=HealthCheck)
    @given(st.data())
    def check(data):
        case = random_case(lambda options: data.draw(st.sampled_from(options)))
        assume(not tensor_cuda.why_not_served(case.spec, gpu_info(CUDA)))
        found = worst(
            apply_decisions(space_of(case.spec), case.weight),
            case.spec,
            case.weight,
            THREE_TF32,
            case.seed,
            case.integers,
        )
        assert found <= 1, case

    check()


@pytest.mark.parametrize("spec", [SPEC, POINTWISE, UNEVEN, IMAGE])
def test_it_is_as_good_as_float32_where_tf32_is_not(fake, spec):
    weight = weight_of(spec)
    in_tf32 = apply_decisions(CudnnSpace(spec, "tf32"), weight)
    assert worst(in_tf32, spec, weight, THREE_TF32) > 1
    assert worst(apply_decisions(space_of(spec), weight), spec, weight, THREE_TF32) <= 1
    # The bound of 3xTF32 is at most a tenth of TF32's, and at least float32's.
    bounds = [
        reference.reference(spec, weight=weight, **reference.random_arguments(spec, 0)).within(each, weight).bound
        for each in (EXACT, THREE_TF32, TF32)
    ]
    assert (bounds[0] < bounds[1]).all() and (10 * bounds[1] < bounds[2]).all()


def test_parts_add_up_to_22_bits():
    rng = np.random.default_rng(0)
    values = (rng.standard_normal(10000) * 2.0 ** rng.integers(-90, 90, 10000)).astype("f4")
    high, low = tf32_parts.parts(values)
    for each in (high, low):
        assert not (each.view(np.int32) & 0x1FFF).any()
        assert np.array_equal(tf32_parts.rounded_to_tf32(each), each)
    assert (np.abs(high.astype("f8") + low - values) <= 2.0**-22 * np.abs(values)).all()
    # Infinity has no low part, which would make it NaN; NaN stays NaN.
    high, low = tf32_parts.parts(np.array([np.inf, -np.inf, LARGEST, np.uint32(0x7FFFFFFF).view("f4")], "f4"))
    assert np.array_equal(high[:3], np.array([np.inf, -np.inf, LARGEST], "f4"))
    assert (low[:3] == 0).all() and np.isnan(high[3])


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"groups": 2}, "2 groups"),
        ({"k": 6}, "6 filters"),
        ({"dtype": "float16"}, "float16"),
        ({"h": 1, "w": 1, "r": 1, "s": 1, "padding": (0, 0, 0, 0)}, "single pixel"),
        ({"n": 64, "c": 64, "h": 512, "w": 512}, "elements"),
    ],
)
def test_what_it_does_not_serve_is_said(monkeypatch, change, problem):
    monkeypatch.setattr(tensor_cuda, "why_not_here", lambda: "")
    spec = replace(SPEC, **change)
    with pytest.raises(NotApplicable, match=problem):
        tensor_cuda.spaces(spec, SparsityPattern.of(weight_of(spec), spec.groups), CUDA)
    older = resolve_target('{"kind":"cuda","arch":"sm_75"}')
    with pytest.raises(NotApplicable, match=r"compute capability 8\.0"):
        tensor_cuda.spaces(SPEC, SparsityPattern.of(weight_of(SPEC)), older)


def test_it_counts_as_float32_and_is_named():
    name = tensor_cuda.NAME
    assert is_exact(name) and not family_of(name).is_library and family_of(name).calls_cudnn
    assert (arithmetic_of(name), precision_of(name, "float32")) == (THREE_TF32, "3xTF32")


def test_it_is_predicted_where_few_pixels_have_many_weights(monkeypatch):
    for module in (tensor_cuda, dense_cudnn):
        monkeypatch.setattr(module, "why_not_here", lambda: "")
    deep = ConvSpec(64, 512, 7, 7, 512, 3, 3, padding=(1, 1, 1, 1), bias=True, relu=True)
    wide = ConvSpec(64, 64, 56, 56, 64, 3, 3, padding=(1, 1, 1, 1), bias=True, relu=True)
    for spec, is_wanted in ((deep, True), (wide, False)):
        pattern = SparsityPattern.of(weight_of(spec, 0.3))
        # On compute capability 9.0 `quad_cuda` is expected to be faster.
        guess = predicted(spec, pattern, resolve_target({"kind": "cuda", "arch": "sm_80"}))
        assert (guess is not None and guess.schedule == tensor_cuda.NAME) == is_wanted, guess
    # In TF32 itself it is one product instead of three.
    guess = predicted(deep, SparsityPattern.of(weight_of(deep, 0.3)), CUDA, allow_tf32=True)
    assert guess is None or guess.schedule != tensor_cuda.NAME
