"""Bottlenecks in one kernel, emulated, against the float64 reference."""

import shutil

import numpy as np
import pytest
from bottleneck_emulator import run

from tvm_sparse.conv.random_weights import normal_weight
from tvm_sparse.conv.reference import Reference, conv2d
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.conv.storage import STORAGE, rounded, stored
from tvm_sparse.scheduling.cuda.bottleneck.bottleneck import NARROW, WIDE, Bottleneck
from tvm_sparse.scheduling.cuda.bottleneck.packing import packed
from tvm_sparse.scheduling.cuda.bottleneck.sample import sample_arrays
from tvm_sparse.scheduling.cuda.bottleneck.space import BottleneckSpace
from tvm_sparse.scheduling.kernel import apply_decisions
from tvm_sparse.target.gpu import gpu_info
from tvm_sparse.target.resolve import resolve_target

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++ to emulate CUDA code")


def bottleneck(n: int, h: int, w: int, dtype: str = "float16") -> Bottleneck:
    same = {"bias": True, "relu": True, "dtype": dtype}
    return Bottleneck(
        ConvSpec(n, WIDE, h, w, NARROW, 1, 1, **same),
        ConvSpec(n, NARROW, h, w, NARROW, 3, 3, padding=(1, 1, 1, 1), **same),
        ConvSpec(n, NARROW, h, w, WIDE, 1, 1, residual=True, **same),
    )


def random_weight(rng: np.random.Generator, spec: ConvSpec) -> np.ndarray:
    weight = rng.standard_normal(spec.weight_shape) * (rng.random(spec.weight_shape) < 0.1)
    return rounded(weight.astype(np.float32) / np.sqrt(spec.c * spec.r * spec.s * 0.1), spec.dtype)


@needs_compiler
@pytest.mark.parametrize(
    ("n", "h", "w", "blocks", "dtype"),
    [
        (1, 5, 15, 1, "float16"),
        pytest.param(1, 9, 29, 1, "bfloat16", marks=pytest.mark.conformance),
        pytest.param(3, 13, 43, 2, "float16", marks=pytest.mark.conformance),
    ],
)
def test_it_computes_three_layers(n: int, h: int, w: int, blocks: int, dtype: str) -> None:
    case, rng = bottleneck(n, h, w, dtype), np.random.default_rng(h)
    weights = [random_weight(rng, spec) for spec in case]
    biases = [stored(rng.standard_normal(spec.k).astype(np.float32) * 0.1, dtype) for spec in case]
    x = stored(rng.standard_normal(case.first.input_shape).astype(np.float32), dtype)
    between = x.astype(np.float64)
    for spec, weight, bias in zip(case, weights, biases, strict=True):
        sums = conv2d(spec, between, weight) + bias.astype(np.float64)[:, None, None]
        between = np.maximum(sums + (x.astype(np.float64) if spec.residual else 0), 0)
    found = run(case, packed(weights, biases, dtype), np.ascontiguousarray(x.transpose(0, 2, 3, 1)), blocks)
    error = np.abs(found.transpose(0, 3, 1, 2).astype(np.float64) - between).max()
    assert error <= 4 * STORAGE[dtype].roundoff * np.abs(between).max()


@needs_compiler
def test_what_a_search_times_is_right_by_what_it_is_verified_with() -> None:
    """And of another weight it is not."""
    case, gpu = bottleneck(2, 5, 15), gpu_info(resolve_target('{"kind":"cuda","arch":"sm_90"}'))
    weight = normal_weight(case.third, 0.1, 0)
    arrays = sample_arrays(case, weight, 7)
    known = Reference(arrays["value"], arrays["bound"])

    def worst(weight: np.ndarray) -> float:
        (constant,) = apply_decisions(BottleneckSpace("some", case, gpu), weight).constants
        return known.worst(run(case, constant, arrays["x"][arrays["images"]], 1), arrays["images"])

    assert worst(weight) <= 1
    weight[3] *= 1.5
    assert worst(weight) > 1
