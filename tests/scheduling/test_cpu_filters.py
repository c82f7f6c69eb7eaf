"""Dense kernels with vectors of filters: right where filters and rows do not fill the tiles, whatever the processor."""

import numpy as np
import pytest
from random_convolutions import run
from tvm.ir import assert_structural_equal
from vector_units import UNITS

from tvm_sparse.conv import reference
from tvm_sparse.conv.conv2d_filters import Blocks, filter_blocks
from tvm_sparse.conv.random_weights import normal_weight
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.errors import BuildError, UsageError
from tvm_sparse.schedules.lookup import find_space, spaces_of
from tvm_sparse.scheduling.cpu.filters import FilterSpace
from tvm_sparse.scheduling.kernel import apply_decisions
from tvm_sparse.target.resolve import resolve_target

TARGET = resolve_target({"kind": "llvm", "opt-level": 0, "num-cores": 1})
PADDED = {"padding": (1, 1, 1, 1)}
SPECS = (
    ConvSpec(1, 6, 9, 9, 40, 3, 3, **PADDED, bias=True, relu=True),
    # Rows whose width no tile divides, without padding too.
    ConvSpec(2, 3, 17, 17, 20, 1, 1, residual=True),
    ConvSpec(1, 4, 5, 25, 33, 3, 3, bias=True),
    ConvSpec(1, 3, 23, 23, 8, 7, 7, stride=(2, 2), padding=(3, 3, 3, 3)),
    ConvSpec(1, 5, 12, 20, 7, 3, 5, padding=(2, 4, 1, 3), dilation=(2, 2)),
    # Maps of few pixels.
    ConvSpec(3, 8, 2, 2, 18, 3, 3, **PADDED),
)


@pytest.mark.parametrize(("unit", "vectors"), [("AVX-512", 2), ("AVX-512", 4), ("AVX2", 2), ("NEON", 4), ("SSE", 1)])
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.key)
def test_matches_the_reference(spec, unit, vectors):
    """With vectors of each length, which any processor computes with those that it has."""
    space = FilterSpace("dense_cpu", spec, UNITS[unit], vectors)
    weight, arguments = normal_weight(spec, 1.0, 1), reference.random_arguments(spec, 2)
    expected = reference.reference(spec, arguments["x"], weight, arguments.get("bias"), arguments.get("residual"))
    assert expected.worst(run(apply_decisions(space, weight), spec, arguments, TARGET)) <= 1


def test_weights_lie_in_the_order_of_use():
    """Channels and filters in blocks of 3 and 4, the last of these not whole."""
    weight = normal_weight(ConvSpec(1, 6, 8, 8, 5, 2, 3), 1.0, 0)
    found = filter_blocks(weight, Blocks(filters=4, channels=3, rows=1, pixels=1, packs=False))
    assert found.shape == (2, 2, 2, 3, 3, 4)
    assert np.array_equal(found[0, 1, 1, 0, 2], [weight[4, 2, 1, 0], 0, 0, 0])
    assert np.array_equal(found[1, 0, 0, 2, 1], weight[:4, 4, 0, 2])


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("vectors", [1, 2, 4])
def test_sums_and_weights_fit_the_registers_and_hide_latency(unit, vectors):
    cpu = UNITS[unit]
    for width in (1, 3, 7, 13, 14, 17, 27, 29, 56, 112):
        space = FilterSpace("dense_cpu", ConvSpec(1, 4, width, width, 64, 1, 1), cpu, vectors)
        pixels = space.cut.pixels
        assert pixels * vectors + vectors + 1 <= cpu.registers
        if cpu.registers == 32 or vectors == 2:
            assert pixels * vectors >= 8


def test_tiles_leave_few_pixels():
    """Of a map as of a part of one; on a small map the last tile would cost much."""
    specs = [ConvSpec(1, 64, width, width, 64, 1, 1) for width in (7, 14, 28, 56)]
    cuts = [FilterSpace("dense_cpu", each, UNITS["AVX2"], 2).cut for each in specs]
    assert [(each.rows, each.pixels) for each in cuts] == [(7, 5), (14, 6), (14, 6), (7, 6)]


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_threads_have_equal_shares(threads):
    for size, filters in ((7, 512), (14, 256), (56, 64)):
        spec = ConvSpec(1, 64, size, size, filters, 3, 3, **PADDED)
        space = FilterSpace("dense_cpu", spec, UNITS["AVX2"], 2, threads)
        group, total = space.starts()[0]["blocks"], size // space.cut.rows * filters // 16
        assert -(-total // group // threads) * threads * group <= 1.3 * total


@pytest.mark.parametrize("mcpu", ["znver4", "znver3"])
@pytest.mark.parametrize(
    ("spec", "first"),
    [
        # Rows of 7 and 14 pixels leave lanes idle; vectors of filters are stored lane by lane, dear after few products.
        (ConvSpec(1, 512, 7, 7, 512, 3, 3, **PADDED), "tile"),
        (ConvSpec(1, 256, 14, 14, 256, 3, 3, **PADDED), "tile"),
        (ConvSpec(1, 1024, 14, 14, 256, 1, 1), "tile"),
        (ConvSpec(1, 3, 224, 224, 64, 3, 3, **PADDED), "rows"),
        (ConvSpec(1, 24, 56, 56, 144, 1, 1), "rows"),
        # Many channels, each in pages of its own.
        (ConvSpec(1, 96, 56, 56, 24, 1, 1), "tile"),
        (ConvSpec(1, 32, 56, 56, 32, 3, 3, **PADDED, groups=32), "rows"),
    ],
    ids=lambda value: getattr(value, "key", value),
)
def test_the_likely_faster_form_is_first(spec, first, mcpu):
    target = resolve_target({"kind": "llvm", "mcpu": mcpu, "num-cores": 1})
    pattern = SparsityPattern.of(normal_weight(spec, 1.0, 0))
    names = [each.name for each in spaces_of(spec, pattern, target, ["dense_cpu"])[0]]
    assert names[0].startswith(f"dense_cpu:{first}")
    assert any(":rows" in name for name in names)


def test_rows_with_enough_sums_come_first_with_few_registers():
    """Of 7 vectors by one filter each, one layout takes twice as long as another of 2 by 4."""
    target = resolve_target({"kind": "llvm", "mcpu": "znver3", "num-cores": 1})
    spec = ConvSpec(1, 24, 56, 56, 144, 1, 1)
    found = spaces_of(spec, SparsityPattern.of(normal_weight(spec, 1.0, 0)), target, ["dense_cpu"])[0]
    assert [each.variant for each in found] == ["rows2x56-direct", "rows1x56-direct", "tile6x16"]


def test_older_records_are_read_and_run_as_the_default():
    target = resolve_target({"kind": "llvm", "mcpu": "znver3", "num-cores": 1})
    weight = normal_weight(SPECS[0], 1.0, 0)
    pattern, decisions = SparsityPattern.of(weight), {"pixels": 4, "rows": 3, "channels": 2}
    space = find_space("dense_cpu:filters16", SPECS[0], pattern, target)
    found = space.scheduled(decisions)
    assert space.name == "dense_cpu:filters16" and space.decisions_of(found) == decisions
    assert_structural_equal(found.mod, find_space("dense_cpu:tile6x16", SPECS[0], pattern, target).scheduled().mod)
    with pytest.raises(BuildError, match="decision rows does not fit, found 4"):
        space.scheduled({**decisions, "rows": 4})
    with pytest.raises(UsageError, match="no variant 'filters12'"):
        find_space("dense_cpu:filters12", SPECS[0], pattern, target)
