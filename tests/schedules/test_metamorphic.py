"""Relations that hold whatever the right answer is: two runs of a kernel, or of two, must agree.

Weights and inputs are small whole numbers, so every sum is exact in float32 and results must be equal.
"""

import dataclasses
from functools import cache

import numpy as np
import pytest
import tvm
from parameters import by_turns
from random_convolutions import call, random_weight

from tvm_sparse.codegen import lowering
from tvm_sparse.conv import reference
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.schedules.lookup import make_kernel
from tvm_sparse.target.resolve import resolve_target

# Without LLVM's optimiser, which takes most of the time: test_random_convolutions.py has optimised kernels.
TARGET = resolve_target('{"kind":"llvm","num-cores":2,"opt-level":0}')
SCHEDULES = ("folded_cpu", "csr_cpu", "dense_cpu")
PLAIN = ConvSpec(2, 6, 9, 11, 8, 3, 3, padding=(1, 1, 1, 1))
SPECS = {
    "plain": PLAIN,
    "strided": dataclasses.replace(PLAIN, stride=(2, 1), padding=(0, 2, 1, 0)),
    "dilated": dataclasses.replace(PLAIN, dilation=(1, 2)),
    "grouped": dataclasses.replace(PLAIN, groups=2),
    "pointwise": dataclasses.replace(PLAIN, r=1, s=1, padding=(0, 0, 0, 0)),
}
EPILOGUE = {"bias": True, "residual": True, "relu": True}
every_schedule = pytest.mark.parametrize("schedule", SCHEDULES)
# Each convolution with one of the schedules, and with all where tests are exhaustive.
every_spec_and_schedule = pytest.mark.parametrize(("name", "schedule"), by_turns(SPECS, SCHEDULES, 3))


def weight_of(spec, density=0.3, seed=0):
    return random_weight(spec, density, "unstructured", seed, True)


@cache
def built(schedule, spec, data):
    """The library of a kernel and its constants; `data` are the weight's bytes. The relations share their kernels."""
    kernel = make_kernel(schedule, spec, np.frombuffer(data, np.float32).reshape(spec.weight_shape), TARGET)
    return lowering.build(kernel.func, TARGET), kernel.constants


def compute(schedule, spec, weight, **arguments):
    library, constants = built(schedule, spec, weight.tobytes())
    return call(library, spec, arguments, constants, tvm.cpu(0))


def inputs_of(spec, seed=1):
    return reference.random_arguments(spec, seed, integers=True)


@every_spec_and_schedule
def test_permuted_filters_permute_the_output(name, schedule):
    spec = dataclasses.replace(SPECS[name], **EPILOGUE)
    weight, arguments = weight_of(spec), inputs_of(spec)
    groups = np.arange(spec.k).reshape(spec.groups, -1)
    order = np.random.default_rng(2).permuted(groups, axis=1).ravel()
    changed = {**arguments, "bias": arguments["bias"][order], "residual": arguments["residual"][:, order]}
    plain = compute(schedule, spec, weight, **arguments)
    assert np.array_equal(compute(schedule, spec, weight[order], **changed), plain[:, order])


@every_schedule
def test_permuted_channels_change_nothing(schedule):
    weight, x = weight_of(PLAIN), inputs_of(PLAIN)["x"]
    order = np.random.default_rng(3).permutation(PLAIN.c)
    permuted = compute(schedule, PLAIN, np.ascontiguousarray(weight[:, order]), x=np.ascontiguousarray(x[:, order]))
    assert np.array_equal(permuted, compute(schedule, PLAIN, weight, x=x))


@pytest.mark.parametrize(("name", "schedule"), by_turns(SPECS, SCHEDULES[:2], 2))
@pytest.mark.parametrize("density", [1.0, 0.4])
def test_sparse_kernels_agree_with_dense_ones(density, name, schedule):
    spec = dataclasses.replace(SPECS[name], **EPILOGUE)
    weight, arguments = weight_of(spec, density), inputs_of(spec)
    expected = compute("dense_cpu", spec, weight, **arguments)
    assert np.array_equal(compute(schedule, spec, weight, **arguments), expected)


@every_spec_and_schedule
def test_linear_in_the_input(name, schedule):
    spec = SPECS[name]
    weight, first, second = weight_of(spec), inputs_of(spec, 4)["x"], inputs_of(spec, 5)["x"]
    together = compute(schedule, spec, weight, x=3 * first - 2 * second)
    apart = 3 * compute(schedule, spec, weight, x=first) - 2 * compute(schedule, spec, weight, x=second)
    assert np.array_equal(together, apart)


@every_schedule
def test_linear_in_the_weight(schedule):
    weight, x = weight_of(PLAIN, 0.5), inputs_of(PLAIN)["x"]
    half = np.random.default_rng(6).random(weight.shape) < 0.5
    parts = [compute(schedule, PLAIN, np.where(mask, weight, 0).astype(np.float32), x=x) for mask in (half, ~half)]
    assert np.array_equal(parts[0] + parts[1], compute(schedule, PLAIN, weight, x=x))


@every_schedule
def test_a_weight_of_zeros_leaves_the_epilogue(schedule):
    spec = dataclasses.replace(PLAIN, **EPILOGUE)
    arguments = inputs_of(spec)
    expected = np.maximum(arguments["bias"][None, :, None, None] + arguments["residual"], 0)
    for zero in (0.0, -0.0):
        weight = np.full(spec.weight_shape, zero, np.float32)
        assert np.array_equal(compute(schedule, spec, weight, **arguments), expected)


@every_schedule
def test_channels_that_are_never_read_do_not_matter(schedule):
    weight, x = weight_of(PLAIN), inputs_of(PLAIN)["x"]
    weight[:, 2] = 0
    other = x.copy()
    other[:, 2] = 1e30
    assert np.array_equal(compute(schedule, PLAIN, weight, x=x), compute(schedule, PLAIN, weight, x=other))


@every_schedule
def test_images_of_a_batch_do_not_mix(schedule):
    weight, x = weight_of(PLAIN), inputs_of(PLAIN)["x"]
    single = dataclasses.replace(PLAIN, n=1)
    apart = np.concatenate([compute(schedule, single, weight, x=np.ascontiguousarray(each[None])) for each in x])
    assert np.array_equal(compute(schedule, PLAIN, weight, x=x), apart)


@every_schedule
def test_a_shifted_input_shifts_the_output(schedule):
    spec = dataclasses.replace(PLAIN, padding=(0, 0, 0, 0))
    weight, x = weight_of(spec), inputs_of(spec)["x"]
    shifted = np.roll(x, (1, 2), axis=(2, 3))
    plain, moved = compute(schedule, spec, weight, x=x), compute(schedule, spec, weight, x=shifted)
    assert np.array_equal(moved[:, :, 1:, 2:], plain[:, :, :-1, :-2])
