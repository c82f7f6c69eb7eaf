"""Convolutions of images on tensor cores, emulated: against the float64 reference, and the pool behind them."""

import random
from dataclasses import replace

import numpy as np
import pytest
from first_emulator import run
from parameters import random_seeds
from random_convolutions import random_first_case
from tvm.target import Target

from tvm_sparse.conv import reference
from tvm_sparse.conv.dtypes import FLOAT16, FLOAT32
from tvm_sparse.conv.error_bounds import TENSOR_CORES
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.schedules import first_cuda
from tvm_sparse.scheduling.cuda.first.packing import packed
from tvm_sparse.scheduling.cuda.first.space import FirstSpace
from tvm_sparse.scheduling.cuda.first.tiling import FirstTiling, Pool
from tvm_sparse.target.gpu import gpu_info

GPU = gpu_info(Target({"kind": "cuda", "arch": "sm_90"}))
LAYER = ConvSpec(2, 3, 17, 19, 24, 3, 3, (2, 2), (1, 1, 1, 1), bias=True, relu=True, dtype=FLOAT16)


def random_pool(rng: random.Random, spec: ConvSpec) -> Pool:
    """A pool of its outputs, whose last windows may reach beyond them."""
    window = rng.randint(1, 3)
    stride, padding = rng.randint(1, window), rng.randint(0, window // 2)
    sizes = (max(1, (size + 2 * padding - window) // stride + rng.randint(0, 1)) for size in spec.output_shape[2:])
    return Pool(window, stride, padding, tuple(sizes))


def of_pool(outputs: np.ndarray, pool: Pool) -> np.ndarray:
    """The largest one of each window."""
    (height, width), size = pool.size, pool.window
    around = [(0, 0), (0, 0), *[(pool.padding, pool.stride * each + size) for each in pool.size]]
    windows = np.lib.stride_tricks.sliding_window_view(
        np.pad(outputs.astype(np.float32), around, constant_values=-np.inf), (size, size), axis=(2, 3)
    )
    return windows.max(axis=(4, 5))[:, :, :: pool.stride, :: pool.stride][:, :, :height, :width]


@random_seeds(few=range(6), count=60)
def test_kernels_are_right(seeds):
    """Alone in NCHW; with a pool and in NHWC they write the largest ones of the same numbers."""
    for seed in seeds:
        rng = random.Random(seed)
        case = random_first_case(rng.choice)
        spec, arguments = case.spec, reference.random_arguments(case.spec, case.seed, case.integers)
        alone = FirstTiling(spec, rng.randint(1, 5), rng.randint(1, 9))
        found = run(alone, packed(case.weight, alone), arguments, rng.randint(1, 3))
        assert case.error(arguments, found, TENSOR_CORES) <= 1, repr(case)
        pool = random_pool(rng, spec)
        pooled = replace(alone, behind=pool, nhwc=True, rows=rng.randint(1, 3), columns=rng.randint(1, 4))
        largest = run(pooled, packed(case.weight, pooled), arguments, rng.randint(1, 3))
        assert np.array_equal(largest.transpose(0, 3, 1, 2), of_pool(found, pool)), (repr(case), pooled)


def test_what_is_not_read_may_be_infinite():
    """Nine taps are three steps, the last of which lacks three."""
    spec = replace(LAYER, n=1, bias=False, relu=False)
    arguments = reference.random_arguments(spec, 0)
    arguments["x"][:, :, 4, 4] = np.inf
    weight = np.ones(spec.weight_shape, np.float32)
    tiling = FirstTiling(spec, 3, 10)
    found = run(tiling, packed(weight, tiling), arguments, 1)
    assert np.array_equal(np.isinf(found), np.isinf(reference.reference(spec, arguments["x"], weight).value))
    assert not np.isnan(found).any()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dtype": FLOAT32}, "only half precision"),
        ({"c": 5}, "at most 4"),
        ({"k": 20}, "multiple of 8"),
        ({"residual": True}, "residual"),
        ({"r": 2, "s": 2}, "4 taps"),
    ],
)
def test_what_is_not_served(changes, words):
    """Each has its sentence."""
    assert words in first_cuda.why_not_served(replace(LAYER, **changes), GPU)
    assert not first_cuda.why_not_served(LAYER, GPU)


def test_tiles_of_a_network_fit():
    """Of ResNet's first layer, alone and with its pool, whose blocks share a multiprocessor by threes."""
    spec = ConvSpec(64, 3, 224, 224, 64, 7, 7, (2, 2), (3, 3, 3, 3), bias=True, relu=True, dtype=FLOAT16)
    for behind in (None, Pool(3, 2, 1, (56, 56))):
        time_us, tiling = FirstSpace("first_cuda", spec, GPU, behind, nhwc=True).ranked[0]
        assert 20 < time_us < 120
        assert tiling.shared_bytes <= GPU.shared_bytes // 3 - GPU.reserved_bytes
