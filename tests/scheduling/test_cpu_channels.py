"""Depthwise kernels with vectors of channels: right whatever the padding and strides, and where they come first."""

import random
from dataclasses import replace

import numpy as np
import pytest
from parameters import by_turns, sampled
from random_convolutions import Case, random_spec, random_weight, run

from tvm_sparse.conv import reference
from tvm_sparse.conv.random_weights import normal_weight
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.errors import UsageError
from tvm_sparse.schedules import dense_cpu
from tvm_sparse.schedules.lookup import find_space
from tvm_sparse.scheduling.cpu.channels import ChannelSpace, is_depthwise
from tvm_sparse.scheduling.kernel import apply_decisions
from tvm_sparse.scheduling.space import divisors
from tvm_sparse.target.cpu_info import CpuInfo
from tvm_sparse.target.resolve import resolve_target

TARGET = resolve_target({"kind": "llvm", "opt-level": 0, "num-cores": 1})
AVX512 = CpuInfo(16, "zmm", True)
PADDED = {"padding": (1, 1, 1, 1)}


def depthwise(channels: int, height: int, width: int, r: int, s: int, n: int = 1, **options) -> ConvSpec:
    return ConvSpec(n, channels, height, width, channels, r, s, groups=channels, **options)


SPECS = (
    depthwise(32, 7, 7, 3, 3, **PADDED, bias=True, relu=True, relu_max=6.0),
    depthwise(16, 14, 14, 3, 3, **PADDED, stride=(2, 2), bias=True, residual=True, relu=True),
    # Rows that no vectors and no tiles of pixels divide; images one after the other.
    depthwise(48, 9, 23, 5, 5, n=2, padding=(2, 2, 2, 2), stride=(1, 2)),
    # Padding that differs on each side, more of it than the taps reach, and dilation.
    depthwise(16, 12, 13, 3, 2, padding=(0, 3, 2, 1), dilation=(2, 3), residual=True),
    depthwise(16, 5, 26, 1, 2, padding=(2, 1, 3, 0), stride=(3, 1), bias=True),
    # The last columns are not read.
    depthwise(16, 10, 12, 2, 2, stride=(3, 3)),
)


@pytest.mark.parametrize(
    ("spec", "channels"), by_turns(SPECS, (4, 8, 16), 3), ids=lambda each: getattr(each, "key", None)
)
def test_matches_the_reference(spec, channels):
    """With vectors of each length, which any processor computes with those that it has; exactly, where sums are."""
    space = ChannelSpace("dense_cpu", spec, AVX512, channels)
    for integers in (True, False):
        weight = normal_weight(spec, 1.0, 1)
        weight = np.round(3 * weight) if integers else weight
        arguments = reference.random_arguments(spec, 2, integers=integers)
        expected = reference.reference(spec, arguments["x"], weight, arguments.get("bias"), arguments.get("residual"))
        found = run(apply_decisions(space, weight), spec, arguments, TARGET)
        assert expected.worst(found) <= 1
        assert not integers or np.array_equal(found, expected.value)


@pytest.mark.parametrize("seed", sampled(range(24), range(8)))
def test_random_convolutions_match_the_reference(seed):
    """With any padding, strides, dilation and epilogue, and any rows of a task."""
    choose = random.Random(seed).choice
    channels = choose((4, 8, 16))
    filters = channels * choose((1, 2, 3))
    drawn = (replace(random_spec(choose), c=filters, k=filters, groups=filters) for _ in range(1000))
    spec, integers = next(filter(is_depthwise, drawn)), choose((True, False))
    case = Case(spec, random_weight(spec, 1.0, "unstructured", seed, integers), seed, integers)
    space = ChannelSpace("dense_cpu", spec, AVX512, channels, 2)
    kernel = apply_decisions(space, case.weight, {"rows": choose(divisors(spec.out_h))})
    assert case.worst(kernel, resolve_target({"kind": "llvm", "opt-level": 0, "num-cores": 2})) <= 1


@pytest.mark.parametrize("threads", [1, 3])
def test_any_rows_of_a_task_are_right(threads):
    spec = depthwise(16, 13, 12, 3, 3, **PADDED, stride=(2, 1))
    target = resolve_target({"kind": "llvm", "opt-level": 0, "num-cores": threads})
    space = ChannelSpace("dense_cpu", spec, AVX512, 8, threads)
    weight, arguments = normal_weight(spec, 1.0, 1), reference.random_arguments(spec, 2)
    expected = reference.reference(spec, arguments["x"], weight)
    for rows in divisors(spec.out_h):
        kernel = apply_decisions(space, weight, {"rows": rows})
        assert expected.worst(run(kernel, spec, arguments, target)) <= 1


def test_nan_and_infinity_go_no_further_than_their_channel():
    spec = depthwise(16, 8, 8, 3, 3, **PADDED)
    weight, arguments = normal_weight(spec, 1.0, 1), reference.random_arguments(spec, 2)
    arguments["x"][0, 3, 2, 2], arguments["x"][0, 9, 4, 4] = np.nan, np.inf
    found = run(apply_decisions(ChannelSpace("dense_cpu", spec, AVX512, 8), weight), spec, arguments, TARGET)
    wrong = ~np.isfinite(found[0])
    assert {*np.nonzero(wrong)[0]} == {3, 9}
    assert wrong[3, 1:4, 1:4].all() and wrong[9, 3:6, 3:6].all() and wrong.sum() == 18


@pytest.mark.parametrize("threads", [1, 2, 3, 8, 64])
def test_threads_have_equal_shares(threads):
    for channels, size in ((96, 112), (144, 56), (576, 14), (960, 7)):
        spec = depthwise(channels, size, size, 3, 3, **PADDED)
        space = ChannelSpace("dense_cpu", spec, AVX512, 16, threads)
        tasks = channels // 16 * (spec.out_h // space.starts()[0]["rows"])
        assert -(-tasks // threads) * threads <= 1.35 * tasks
        assert 0.99 <= space.imbalance <= 1.6


@pytest.mark.parametrize(
    ("spec", "mcpu", "first"),
    [
        (depthwise(96, 112, 112, 3, 3, **PADDED, stride=(2, 2)), "x86-64-v4", "channels16"),
        (depthwise(96, 112, 112, 3, 3, **PADDED, stride=(2, 2)), "x86-64-v3", "channels8"),
        (depthwise(24, 56, 56, 3, 3, **PADDED, stride=(2, 2)), "x86-64-v4", "channels8"),
        (depthwise(384, 14, 14, 3, 3, **PADDED), "x86-64-v4", "channels16"),
        (depthwise(480, 14, 14, 5, 5, padding=(2, 2, 2, 2)), "x86-64-v4", "channels16"),
        (depthwise(192, 28, 28, 3, 3, **PADDED), "x86-64-v3", "channels8"),
        (depthwise(480, 14, 14, 5, 5, padding=(2, 2, 2, 2)), "x86-64-v3", "channels8"),
        # No vectors divide the channels, rows are too short, filters share a channel, have one tap, or are of halves.
        (depthwise(32, 14, 14, 1, 1), "x86-64-v4", "rows"),
        (depthwise(20, 14, 14, 3, 3, **PADDED), "x86-64-v4", "rows"),
        (depthwise(32, 3, 3, 3, 3, **PADDED), "x86-64-v4", "rows"),
        (ConvSpec(1, 32, 14, 14, 64, 3, 3, **PADDED, groups=32), "x86-64-v4", "rows"),
        (depthwise(32, 14, 14, 3, 3, **PADDED, dtype="float16"), "x86-64-v4", "rows"),
    ],
    ids=lambda value: getattr(value, "key", value),
)
def test_the_likely_faster_form_is_first(spec, mcpu, first):
    target = resolve_target({"kind": "llvm", "mcpu": mcpu, "num-cores": 1})
    pattern = SparsityPattern.of(normal_weight(spec, 1.0, 0), spec.groups)
    variants = [each.variant for each in dense_cpu.spaces(spec, pattern, target)]
    assert variants[0].startswith(first) and any(each.startswith("rows") for each in variants)
    assert is_depthwise(spec) or not any(each.startswith("channels") for each in variants)


def test_spaces_are_found_by_name():
    """Those that serve the convolution and the processor."""
    target = resolve_target({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 1})
    spec = depthwise(24, 14, 14, 3, 3, **PADDED)
    pattern = SparsityPattern.of(normal_weight(spec, 1.0, 0), spec.groups)
    assert [find_space(f"dense_cpu:channels{each}", spec, pattern, target).variant for each in (4, 8)] == [
        "channels4",
        "channels8",
    ]
    for variant in ("channels16", "channels6", "channels2", "channels0"):
        with pytest.raises(UsageError, match=f"it has no variant '{variant}'"):
            find_space(f"dense_cpu:{variant}", spec, pattern, target)
