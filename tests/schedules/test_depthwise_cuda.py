"""Depthwise convolutions in half precision, emulated in both layouts: against the float64 reference."""

import math
import random
from dataclasses import replace

import numpy as np
import pytest
from depthwise_emulator import run
from parameters import random_seeds
from random_convolutions import random_depthwise_case
from tvm.target import Target

from tvm_sparse.conv import reference
from tvm_sparse.conv.dtypes import FLOAT16, FLOAT32
from tvm_sparse.conv.error_bounds import EXACT
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.schedules import depthwise_cuda
from tvm_sparse.scheduling.cuda.depthwise.space import DepthwiseSpace
from tvm_sparse.scheduling.cuda.depthwise.tiling import COLUMNS, DepthwiseTiling, packed
from tvm_sparse.target.gpu import gpu_info

GPU = gpu_info(Target({"kind": "cuda", "arch": "sm_90"}))
LAYER = ConvSpec(2, 16, 9, 11, 16, 3, 3, (1, 1), (1, 1, 1, 1), groups=16, relu=True, dtype=FLOAT16)


@random_seeds(few=range(8), count=120)
def test_kernels_are_right(seeds):
    """In NHWC, of inputs that are clipped first, and the same numbers in NCHW."""
    for seed in seeds:
        rng = random.Random(seed)
        case, most = random_depthwise_case(rng.choice), rng.choice((math.inf, 0.5))
        spec = case.spec
        assert not depthwise_cuda.why_not_served(spec, GPU)
        arguments = reference.random_arguments(spec, case.seed, case.integers)
        clipped = {**arguments, "x": np.minimum(arguments["x"], np.asarray(most, arguments["x"].dtype))}
        columns = rng.choice(COLUMNS[spec.r, spec.stride[0]])
        tiling, weights = DepthwiseTiling(spec, columns, True, most), packed(case.weight, spec.dtype)
        found = run(tiling, weights, arguments).transpose(0, 3, 1, 2)
        assert case.error(clipped, found, EXACT) <= 1, (repr(case), tiling)
        other = run(replace(tiling, nhwc=False), weights, arguments)
        assert np.array_equal(other.view(np.int16), np.ascontiguousarray(found).view(np.int16)), (repr(case), tiling)


def test_a_clipped_nan_stays():
    """As a clipped ReLU of torch keeps it; infinity becomes the largest input."""
    spec = replace(LAYER, n=1, relu=False)
    x = np.ones(spec.input_shape, np.float16)
    x[:, :, 4, 4], x[:, :, 0, 0] = np.nan, np.inf
    tiling, weights = DepthwiseTiling(spec, 2, True, 6.0), packed(np.ones(spec.weight_shape, np.float32), FLOAT16)
    found = run(tiling, weights, {"x": x}).transpose(0, 3, 1, 2)
    assert np.isnan(found[0, 0, 3:6, 3:6]).all() and np.isnan(found).sum() == 9 * spec.k
    assert found[0, 0, 0, 0] == 6 + 3


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dtype": FLOAT32}, "only half precision"),
        ({"groups": 8}, "not depthwise"),
        ({"residual": True}, "residual"),
        ({"c": 12, "k": 12, "groups": 12}, "multiple of 8"),
        ({"r": 7, "s": 7}, "7x7 taps"),
        ({"stride": (1, 2)}, "stride of 1x2"),
        ({"dilation": (2, 2)}, "dilated"),
    ],
)
def test_what_no_depthwise_kernel_serves(changes, words):
    """Each has its sentence."""
    assert words in depthwise_cuda.why_not_served(replace(LAYER, **changes), GPU)
    assert not depthwise_cuda.why_not_served(LAYER, GPU)


def test_estimates_are_near_what_memory_allows():
    """Of a layer of MobileNetV2, whose input and output are 103 MB."""
    spec = ConvSpec(64, 32, 112, 112, 32, 3, 3, (1, 1), (1, 1, 1, 1), bias=True, relu=True, groups=32, dtype=FLOAT16)
    time_us, _ = DepthwiseSpace("depthwise_cuda", spec, GPU, nhwc=True).ranked[0]
    assert 24 < time_us < 60
