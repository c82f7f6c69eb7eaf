"""Kernels by Winograd: right where maps, filters and channels do not fill the tiles, and cut for threads."""

import numpy as np
import pytest
from parameters import by_turns
from random_convolutions import run
from vector_units import UNITS

from tvm_sparse.conv import reference
from tvm_sparse.conv.conv2d_winograd import TileBlocks, transformed_weight
from tvm_sparse.conv.error_bounds import FLOAT32_ROUNDOFF, WINOGRAD
from tvm_sparse.conv.random_weights import normal_weight
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.cpu.winograd import WinogradSpace
from tvm_sparse.scheduling.kernel import apply_decisions
from tvm_sparse.scheduling.space import NotApplicable
from tvm_sparse.target.resolve import resolve_target

TARGET = resolve_target({"kind": "llvm", "opt-level": 0, "num-cores": 1})
PADDED = {"padding": (1, 1, 1, 1)}
SPECS = (
    ConvSpec(1, 6, 8, 8, 40, 3, 3, **PADDED, bias=True, relu=True),
    # An odd map, on which tiles go beyond its end, and one of fewer pixels than a tile has.
    ConvSpec(1, 5, 7, 9, 33, 3, 3, **PADDED, bias=True, residual=True),
    ConvSpec(2, 3, 3, 3, 18, 3, 3),
    # Rows of several vectors, the last of them not whole; channels in blocks.
    ConvSpec(1, 64, 6, 60, 16, 3, 3, **PADDED, residual=True, relu=True, relu_max=6.0),
    ConvSpec(2, 48, 14, 14, 20, 3, 3, **PADDED, relu=True),
    ConvSpec(1, 4, 12, 20, 7, 3, 3, padding=(2, 0, 1, 3), bias=True),
)


def results(spec, unit, vectors, integers=False):
    """The reference, the result and the weight of a kernel."""
    weight, arguments = normal_weight(spec, 1.0, 1), reference.random_arguments(spec, 2, integers)
    weight = np.round(4 * weight / np.abs(weight).max()) if integers else weight
    expected = reference.reference(spec, arguments["x"], weight, arguments.get("bias"), arguments.get("residual"))
    space = WinogradSpace("winograd_cpu", spec, UNITS[unit], vectors)
    return expected, run(apply_decisions(space, weight), spec, arguments, TARGET), weight


# Vector units, and how many of their vectors a tile has.
VECTORS = (("AVX-512", 2), ("AVX-512", 4), ("AVX2", 2), ("NEON", 4), ("SSE", 1))


@pytest.mark.parametrize(("spec", "vectors"), by_turns(SPECS, VECTORS, 2), ids=lambda each: getattr(each, "key", None))
def test_matches_the_reference(spec, vectors):
    """With vectors of each length, which any processor computes with those that it has; within a direct kernel's bound
    too, as fewer sums are rounded."""
    expected, y, weight = results(spec, *vectors)
    assert expected.within(WINOGRAD, weight).worst(y) < 0.2
    assert expected.worst(y) <= 1


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.key)
def test_small_integers_are_exact(spec):
    """Transformed filters are quarters of integers, of which float32 rounds none."""
    expected, y, _ = results(spec, "AVX-512", 2, integers=True)
    assert np.array_equal(y, expected.value)


def test_the_bound_is_of_the_largest_input():
    """Beside a large input, which a direct kernel multiplies by zero, an output is off by more than its bound there."""
    spec = ConvSpec(1, 1, 8, 8, 1, 3, 3, **PADDED)
    weight, x = np.zeros(spec.weight_shape, np.float32), np.full(spec.input_shape, 1e-4, np.float32)
    weight[0, 0, 0, 0], x[0, 0, 3, 3] = 1, 3e4
    kernel = apply_decisions(WinogradSpace("winograd_cpu", spec, UNITS["AVX2"], 1), weight)
    expected, y = reference.reference(spec, x, weight), run(kernel, spec, {"x": x}, TARGET)
    own = expected.within(WINOGRAD, weight)
    assert expected.worst(y) > 100 and own.worst(y) < 1
    # One channel: 13 roundings of four times the input, at nine positions whose weights are 1, 1/2 or 1/4.
    assert own.bound.max() < 1.02 * 13 * FLOAT32_ROUNDOFF * 4 * 3e4 * 4


def test_there_is_no_bound_where_sums_may_overflow():
    spec = ConvSpec(1, 1, 4, 4, 1, 3, 3)
    x, weight = np.full(spec.input_shape, 1e37, np.float32), np.ones(spec.weight_shape, np.float32)
    expected = reference.reference(spec, x, weight)
    assert np.isfinite(expected.bound).all() and np.isinf(expected.within(WINOGRAD, weight).bound).all()


def test_nan_reaches_the_outputs_that_read_it():
    """No others of its tiles: each output is of those transformed numbers only that its own inputs are in."""
    spec = ConvSpec(1, 2, 8, 8, 4, 3, 3, **PADDED)
    weight, arguments = normal_weight(spec, 1.0, 0), reference.random_arguments(spec, 0)
    for pixel in (2, 3):
        arguments["x"][0, 1, pixel, pixel] = np.nan
    y = run(apply_decisions(WinogradSpace("winograd_cpu", spec, UNITS["AVX2"], 1), weight), spec, arguments, TARGET)
    np.testing.assert_array_equal(np.isnan(y), np.isnan(reference.conv2d(spec, arguments["x"], weight)))


def test_weights_lie_in_the_order_of_use():
    weight = normal_weight(ConvSpec(1, 6, 8, 8, 5, 3, 3), 1.0, 0)
    found = transformed_weight(weight, TileBlocks(filters=4, channels=3, rows=1, tiles=1))
    assert found.shape == (2, 4, 4, 6, 4) and found.dtype == np.float32
    # Corners are the filter's, the others sums of its taps.
    assert np.array_equal(found[1, 0, 3, 2], [weight[4, 2, 0, 2], 0, 0, 0])
    assert np.isclose(found[0, 1, 1, 5, 3], weight[3, 5].sum() / 4, rtol=1e-6)


@pytest.mark.parametrize(
    "change",
    [{"stride": (2, 2)}, {"dilation": (2, 2)}, {"groups": 2}, {"dtype": "float16"}, {"r": 1}, {"s": 5}],
    ids=lambda change: next(iter(change)),
)
def test_other_convolutions_are_not_served(change):
    spec = ConvSpec(**{"n": 1, "c": 4, "h": 9, "w": 9, "k": 8, "r": 3, "s": 3, "padding": (1, 1, 2, 2), **change})
    with pytest.raises(NotApplicable, match="only 3x3 taps"):
        WinogradSpace("winograd_cpu", spec, UNITS["AVX2"], 2)


@pytest.mark.parametrize(("unit", "vectors"), [("AVX-512", 2), ("AVX2", 2), ("NEON", 4)])
@pytest.mark.parametrize(("threads", "filters"), [(1, 48), (2, 40), (8, 32)])
def test_an_odd_number_of_rows_is_shared(unit, vectors, threads, filters):
    """Rows of tiles are in groups, of which the last is not whole."""
    spec = ConvSpec(1, 16, 35, 33, filters, 3, 3, **PADDED, bias=True, residual=True, relu=True)
    space = WinogradSpace("winograd_cpu", spec, UNITS[unit], vectors, threads)
    assert space.cut.rows < 18
    weight, arguments = normal_weight(spec, 1.0, 1), reference.random_arguments(spec, 2)
    expected = reference.reference(spec, weight=weight, **arguments)
    assert expected.worst(run(apply_decisions(space, weight), spec, arguments, TARGET)) <= 1


@pytest.mark.parametrize("threads", [2, 3, 8])
def test_threads_have_equal_shares(threads):
    """Twice the threads take little more than half the time."""
    for size, filters in ((8, 512), (14, 256), (56, 64)):
        spec = ConvSpec(1, 64, size, size, filters, 3, 3, **PADDED)
        costs = [
            min(WinogradSpace("winograd_cpu", spec, UNITS["AVX2"], vectors, count).cost for vectors in (1, 2))
            for count in (1, threads)
        ]
        assert costs[1] <= 1.7 * costs[0]


def test_tiles_of_rows_fit_the_level_2_cache():
    widths = {(64, 56): 0.5, (128, 28): 1, (512, 28): 1, (64, 224): 1}
    for (channels, width), most in widths.items():
        cut = WinogradSpace(
            "winograd_cpu", ConvSpec(1, channels, width, width, 64, 3, 3, **PADDED), UNITS["AVX2"], 2
        ).cut
        assert 64 * channels * cut.rows * width // 2 <= most * (1 << 20), (channels, width)
