"""NaN and infinity: which weights are refused, and where they go when they are in an input.

A product with a zero weight does not happen, so what is not finite passes a zero by; everywhere else it spreads as in
IEEE arithmetic, through bias, residual and ReLU too. With ``strict_nonfinite`` it spreads as in torch.
"""

import dataclasses

import numpy as np
import pytest
import torch
import tvm
import zoo
from random_convolutions import run
from test_build_model import record
from torch import nn

from tvm_sparse.compiler import build_model
from tvm_sparse.conv import reference
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.errors import ModelError
from tvm_sparse.frontend.prepare import prepare
from tvm_sparse.logs.tuning_log import TuningLog
from tvm_sparse.schedules.lookup import make_kernel
from tvm_sparse.target.fingerprint import fingerprint_of
from tvm_sparse.target.resolve import resolve_target, target_json

TARGET = resolve_target('{"kind":"llvm","opt-level":0,"num-cores":1}')
SPEC = ConvSpec(1, 2, 8, 8, 4, 3, 3, padding=(1, 1, 1, 1))
SPARSE, DENSE = ("folded_cpu", "csr_cpu"), "dense_cpu"


def weight_with_zeros():
    """Filter 0 is dead, filter 1 reads channel 1 only, and no filter reads the tap (0, 0)."""
    weight = np.random.default_rng(0).standard_normal(SPEC.weight_shape).astype(np.float32)
    weight[0], weight[1, 0], weight[:, :, 0, 0] = 0, 0, 0
    return weight


def computed(schedule, spec, value):
    x = np.random.default_rng(1).standard_normal(spec.input_shape).astype(np.float32)
    x[0, 0, 3, 3] = value
    weight = weight_with_zeros()
    return x, weight, run(make_kernel(schedule, spec, weight, TARGET), spec, {"x": x}, TARGET)


def in_torch(spec, x, weight):
    y = nn.functional.conv2d(torch.from_numpy(x), torch.from_numpy(weight), padding=1)
    return (y.clamp(0, spec.relu_max) if spec.relu else y).numpy()


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("schedule", SPARSE)
def test_nan_reaches_what_non_zero_weights_connect_it_to(schedule, relu):
    spec = dataclasses.replace(SPEC, relu=relu)
    x, weight, y = computed(schedule, spec, np.nan)
    reached = reference.conv2d(spec, np.isnan(x), weight != 0) > 0
    assert reached.any() and not reached.all()
    np.testing.assert_array_equal(np.isnan(y), reached)
    # Elsewhere it is as if the value had been zero.
    expected = reference.reference(spec, np.nan_to_num(x, nan=0.0), weight)
    assert (np.abs(y - expected.value)[~reached] <= expected.bound[~reached]).all()


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("value", [np.inf, -np.inf])
@pytest.mark.parametrize("schedule", SPARSE)
def test_infinity_keeps_its_sign(schedule, value, relu):
    spec = dataclasses.replace(SPEC, relu=relu)
    x, weight, y = computed(schedule, spec, value)
    # The sum over taps of the sign with which the infinity comes in; one tap at most sees it.
    sign = reference.conv2d(spec, np.where(np.isinf(x), np.sign(x), 0), np.sign(weight))
    expected = np.where(sign > 0, np.inf, np.where(sign < 0, 0 if relu else -np.inf, y))
    np.testing.assert_array_equal(y, expected)
    assert not np.isnan(y).any() and np.isinf(y).any()


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_dense_kernel_does_as_torch(value, relu):
    spec = dataclasses.replace(SPEC, relu=relu)
    x, weight, y = computed(DENSE, spec, value)
    np.testing.assert_allclose(y, in_torch(spec, x, weight), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("schedule", [*SPARSE, DENSE])
def test_nan_in_bias_and_residual_passes_the_relu(schedule):
    spec = dataclasses.replace(SPEC, bias=True, residual=True, relu=True)
    arguments = reference.random_arguments(spec, 0)
    arguments["bias"][0] = np.nan
    arguments["residual"][0, 2, 4, 4] = np.nan
    y = run(make_kernel(schedule, spec, weight_with_zeros(), TARGET), spec, arguments, TARGET)
    assert np.isnan(y[0, 0]).all() and np.isnan(y[0, 2, 4, 4])
    assert np.isnan(y).sum() == 65


def sparse_log(prepared, path):
    """A log by which every layer is folded."""
    log = TuningLog(path)
    for layer in prepared.layers:
        log.append(record(layer, target=target_json(TARGET), fingerprint=fingerprint_of(TARGET)))
    return log


@pytest.mark.parametrize("name", ["residual", "batch_norm_before", "used_twice", "classifier"])
def test_strict_nonfinite_does_as_torch(name, tmp_path):
    module, shapes = zoo.TORCH[name]
    (x,) = zoo.inputs_of(shapes)
    x[0, 1, 4, 4] = np.nan
    log = sparse_log(prepare(module, torch.zeros(shapes[0])), tmp_path / "log.jsonl")
    fast = build_model.compile(module, torch.zeros(shapes[0]), target=TARGET, log=log)
    strict = build_model.compile(module, torch.zeros(shapes[0]), target=TARGET, log=log, strict_nonfinite=True)
    assert {row["schedule"] for row in fast.report()} == {"folded_cpu"}
    assert {row["schedule"] for row in strict.report()} == {"dense_cpu"}
    assert all("strict_nonfinite" in row["reason"] for row in strict.report())
    (want,) = zoo.run_torch(module, x)
    np.testing.assert_array_equal(np.isnan(strict(x)), np.isnan(want))
    assert np.isnan(fast(x)).any(), "NaN does not vanish"
    np.testing.assert_allclose(strict(x), want, rtol=1e-4, atol=1e-4)


def test_relus_of_their_own_keep_nan():
    module = nn.Sequential(nn.ReLU(), nn.Flatten(), nn.Linear(6, 4), nn.ReLU()).eval()
    x = np.array([[1, -1, np.nan, -np.inf, np.inf, -0.0]], np.float32).reshape(1, 1, 2, 3)
    with torch.no_grad():
        want = module(torch.from_numpy(x)).numpy()
    assert np.isnan(want).any()
    np.testing.assert_array_equal(build_model.compile(module, torch.zeros(1, 1, 2, 3), target=TARGET)(x), want)
    only = nn.Sequential(nn.ReLU()).eval()
    found = build_model.compile(only, torch.zeros(1, 1, 2, 3), target=TARGET)(x)
    np.testing.assert_array_equal(found, only(torch.from_numpy(x)).numpy())


class Extremes(nn.Module):
    def forward(self, x, y):
        return torch.maximum(x, y), torch.minimum(x, y), x.argmax(1), x.argmin(1)


def test_extremes_of_nan_and_infinity():
    """Of two numbers NaN is both, and of equal infinities the first is the farthest."""
    x = np.array([[np.nan, 1, -np.inf], [-np.inf, -np.inf, -np.inf], [np.inf, np.inf, np.inf]], np.float32)
    y = np.array([[2, np.nan, 0], [np.nan, -np.inf, 3], [1, np.inf, -1]], np.float32)
    module = Extremes().eval()
    found = build_model.compile(module, (torch.zeros(x.shape), torch.zeros(y.shape)), target=TARGET)(x, y)
    for got, want in zip(found[:2], module(torch.from_numpy(x), torch.from_numpy(y))[:2], strict=True):
        np.testing.assert_array_equal(got, want.numpy())
    for got in found[2:]:
        np.testing.assert_array_equal(got[1:], [0, 0])


@pytest.mark.parametrize("module", [nn.Hardtanh(-2, 3), nn.ReLU6(), nn.Hardsigmoid(), nn.Hardswish()], ids=str)
def test_clips_of_their_own_keep_nan(module):
    x = np.array([-9, -1, np.nan, -np.inf, np.inf, -0.0, 2.5, 7], np.float32).reshape(1, 2, 2, 2)
    found = build_model.compile(module.eval(), torch.zeros(x.shape), target=TARGET)(x)
    np.testing.assert_allclose(found, module(torch.from_numpy(x)).numpy(), rtol=1e-6)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("weight", np.nan, r"layer 0: weight\[0, 0, 0, 0\] is not finite, found nan"),
        ("weight", -np.inf, r"layer 0: weight\[0, 0, 0, 0\] is not finite, found -inf"),
        ("bias", np.nan, "layer 0: a constant of add is NaN"),
        ("bias", np.inf, r"layer 0: bias\[0\] is not finite, found inf"),
    ],
)
def test_parameters_that_are_not_finite_are_refused(place, value, message):
    module = nn.Sequential(nn.Conv2d(2, 3, 3)).eval()
    with torch.no_grad():
        getattr(module[0], place).view(-1)[0] = value
    with pytest.raises(ModelError, match=message):
        prepare(module, torch.zeros(1, 2, 8, 8))


def test_a_batch_norm_that_makes_nan_is_refused():
    module = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)).eval()
    module[1].running_var[1] = -1
    with pytest.raises(ModelError, match="is NaN; repair the parameters: biases, and statistics of batch norms"):
        prepare(module, torch.zeros(1, 2, 8, 8))


@pytest.mark.gpu
@pytest.mark.parametrize("schedule", ["folded_cuda", "csr_cuda"])
def test_nan_on_a_gpu(schedule):
    target, spec = resolve_target("cuda"), dataclasses.replace(SPEC, relu=True)
    x = np.random.default_rng(1).standard_normal(spec.input_shape).astype(np.float32)
    x[0, 0, 3, 3] = np.nan
    kernel = make_kernel(schedule, spec, weight_with_zeros(), target)
    from tvm_sparse.codegen import lowering

    device = tvm.cuda(0)
    y = tvm.runtime.tensor(np.zeros(spec.output_shape, np.float32), device)
    arrays = [tvm.runtime.tensor(each, device) for each in (x, *kernel.constants)]
    lowering.build(kernel.func, target)["main"](*arrays, y)
    np.testing.assert_array_equal(
        np.isnan(y.numpy()), reference.conv2d(spec, np.isnan(x), weight_with_zeros() != 0) > 0
    )
