"""An expansion and the depthwise convolution behind it in one kernel: right whatever either is, and evenly shared."""

import random
from dataclasses import replace

import numpy as np
import pytest
import tvm
from parameters import sampled
from random_convolutions import random_spec

from tvm_sparse.codegen.lowering import build
from tvm_sparse.conv import reference
from tvm_sparse.conv.random_weights import normal_weight
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.cpu.channels import is_depthwise
from tvm_sparse.scheduling.cpu.expansion import MOST_CHANNELS, ExpandedSpace
from tvm_sparse.scheduling.kernel import kernel_of
from tvm_sparse.target.cpu_info import CpuInfo
from tvm_sparse.target.resolve import resolve_target

AVX2, AVX512 = CpuInfo(8), CpuInfo(16, "", True)
RELU6 = {"relu": True, "relu_max": 6.0}
PADDED = {"padding": (1, 1, 1, 1)}


def pair(c: int, k: int, h: int, w: int, first: dict | None = None, n: int = 1, **options) -> tuple[ConvSpec, ConvSpec]:
    """An expansion of `c` channels to `k`, with `first` as options, and a 3x3 depthwise convolution with `options`."""
    expansion = ConvSpec(n, c, h, w, k, 1, 1, **(first or {}))
    taps = {"r": 3, "s": 3, **options}
    return expansion, ConvSpec(n, k, expansion.out_h, expansion.out_w, k, groups=k, **taps)


PAIRS = (
    pair(4, 32, 14, 14, {"bias": True, **RELU6}, **PADDED, bias=True, **RELU6),
    pair(8, 16, 7, 7, {"relu": True}, **PADDED, stride=(2, 2), bias=True, residual=True, relu=True),
    # Rows that neither vectors nor tiles of pixels divide; images one after the other; no epilogues.
    pair(3, 48, 9, 23, n=2, r=5, s=5, padding=(2, 2, 2, 2), stride=(1, 2)),
    # The expansion skips pixels; padding differs on each side, more of it than taps reach; dilation.
    pair(5, 16, 24, 27, {"stride": (2, 2), "bias": True}, r=3, s=2, padding=(0, 3, 2, 1), dilation=(2, 3)),
    # Last rows and columns that no tap reads.
    pair(6, 16, 10, 12, {"bias": True, "relu": True}, r=2, s=2, stride=(3, 3)),
    pair(1, 16, 4, 4, {"bias": True}, r=1, s=2, padding=(2, 1, 3, 0), stride=(3, 1), bias=True),
)


def worst_error(
    expansion: ConvSpec, spec: ConvSpec, cpu: CpuInfo, threads: int, integers: bool, seed: int = 1
) -> float:
    """Largest error of the kernel as a fraction of its bound; outputs are NaN before.

    What the first convolution is off by reaches the second's sums multiplied by its weights.
    """
    first = reference.random_arguments(expansion, seed, integers=integers)
    rest = reference.random_arguments(spec, seed + 1, integers=integers)
    weights = [normal_weight(each, 1.0, seed) for each in (expansion, spec)]
    weights = [np.round(2 * each) if integers else each for each in weights]
    between = reference.reference(expansion, first["x"], weights[0], first.get("bias"))
    expected = reference.reference(spec, between.value, weights[1], rest.get("bias"), rest.get("residual"))
    inherited = reference.conv2d(spec, between.bound, np.abs(weights[1]))
    expected = replace(expected, bound=expected.bound + inherited)
    space = ExpandedSpace("dense_cpu", expansion, spec, cpu, threads)
    kernel = kernel_of(space, space.scheduled(), weights[1])
    constants = (*space.expansion_constants(weights[0], first.get("bias")), *kernel.constants)
    y = np.full(spec.output_shape, np.nan, np.float32)
    arrays = [first["x"], *constants, *(rest[name] for name in ("bias", "residual") if name in rest), y]
    tensors = [tvm.runtime.tensor(each) for each in arrays]
    build(kernel.func, resolve_target({"kind": "llvm", "opt-level": 0, "num-cores": threads}))["main"](*tensors)
    found = tensors[-1].numpy()
    if integers:
        assert np.array_equal(found, expected.value)
    return expected.worst(found)


@pytest.mark.parametrize("cpu", [AVX2, AVX512], ids=["8 lanes", "16 lanes"])
@pytest.mark.parametrize("specs", PAIRS, ids=lambda specs: specs[1].key)
def test_matches_the_reference(specs, cpu):
    """With vectors of each length, which any processor computes with those that it has; exactly, where sums are."""
    assert ExpandedSpace.serves(*specs, cpu)
    for integers in (True, False):
        assert worst_error(*specs, cpu, 1, integers) <= 1


@pytest.mark.parametrize("threads", [2, 3, 7])
def test_any_number_of_threads_is_right(threads):
    assert worst_error(*pair(8, 48, 28, 28, {"bias": True, **RELU6}, **PADDED, bias=True), AVX512, threads, True) <= 1


@pytest.mark.parametrize("seed", sampled(range(24), range(8)))
def test_random_pairs_match_the_reference(seed):
    """With any padding, strides, dilation and epilogues."""
    choose = random.Random(seed).choice
    cpu, channels = choose((AVX2, AVX512)), 16 * choose((1, 2, 3))
    drawn = (replace(random_spec(choose), c=channels, k=channels, groups=channels) for _ in range(1000))
    spec = next(filter(is_depthwise, drawn))
    first = choose(({}, {"relu": True}, RELU6)) | {"bias": choose((True, False))}
    expansion = ConvSpec(spec.n, choose((1, 3, 8, 20)), spec.h, spec.w, channels, 1, 1, **first)
    assert worst_error(expansion, spec, cpu, choose((1, 2, 4)), choose((True, False)), seed) <= 1


def test_nan_and_infinity_go_where_they_go_in_two_convolutions():
    expansion, spec = pair(4, 16, 8, 8, {"bias": True, **RELU6}, **PADDED)
    space = ExpandedSpace("dense_cpu", expansion, spec, AVX2)
    weight, taps = np.ones(expansion.weight_shape, np.float32), normal_weight(spec, 1.0, 1)
    x = np.zeros(expansion.input_shape, np.float32)
    x[0, 1, 2, 2] = np.nan
    kernel, y = kernel_of(space, space.scheduled(), taps), tvm.runtime.tensor(np.zeros(spec.output_shape, np.float32))
    constants = (*space.expansion_constants(weight, None), *kernel.constants)
    module = build(kernel.func, resolve_target({"kind": "llvm", "num-cores": 1}))
    module["main"](*map(tvm.runtime.tensor, (x, *constants)), y)
    wrong = np.isnan(y.numpy())
    assert wrong[0, :, 1:4, 1:4].all() and wrong.sum() == 9 * spec.k


@pytest.mark.parametrize("threads", [1, 2, 3, 8, 16])
def test_threads_have_equal_shares(threads):
    """Of MobileNetV2's: the busiest has at most 1.3 times its share."""
    for c, k, size, stride in (
        (16, 96, 112, 2),
        (24, 144, 56, 1),
        (32, 192, 28, 1),
        (64, 384, 14, 1),
        (160, 960, 7, 1),
    ):
        expansion, spec = pair(c, k, size, size, **PADDED, stride=(stride, stride))
        space = ExpandedSpace("dense_cpu", expansion, spec, AVX512, threads)
        rows, blocks = space.task
        tasks = spec.out_h // rows * (k // 16 // blocks)
        assert -(-tasks // threads) * threads <= 1.35 * tasks


def changed(specs: tuple[ConvSpec, ConvSpec], first: dict, second: dict) -> tuple[ConvSpec, ConvSpec]:
    return replace(specs[0], **first), replace(specs[1], **second)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"residual": True}, {}),
        ({"padding": (1, 1, 1, 1), "h": 12, "w": 12}, {}),
        ({"r": 3, "s": 3, "h": 16, "w": 16}, {}),
        ({"groups": 4}, {}),
        ({"c": MOST_CHANNELS + 1}, {}),
        ({"dtype": "float16"}, {}),
        ({}, {"groups": 1}),
        ({}, {"dtype": "float16"}),
        ({"k": 36}, {"c": 36, "k": 36, "groups": 36}),
        ({"h": 28}, {"padding": (1, 1, 1, 1)}),
    ],
    ids=str,
)
def test_others_are_not_served(first, second):
    specs = pair(8, 32, 14, 14, **PADDED)
    assert ExpandedSpace.serves(*specs, AVX512) and not ExpandedSpace.serves(*changed(specs, first, second), AVX512)
