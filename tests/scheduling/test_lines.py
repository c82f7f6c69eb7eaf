"""Kernels on whole cache lines: where taps lie, and that every way to cut the work gives the same sums."""

import dataclasses

import numpy as np
import pytest
from random_convolutions import Case, random_weight

from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.cpu.line_space import LineSpace, cycles, ranked, tiles
from tvm_sparse.scheduling.cpu.lines import Lines
from tvm_sparse.scheduling.kernel import apply_decisions
from tvm_sparse.scheduling.space import NotApplicable
from tvm_sparse.target.cpu_info import CpuInfo
from tvm_sparse.target.resolve import resolve_target

AVX2 = resolve_target({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 1, "opt-level": 0})
CPU = CpuInfo(8, "ymm")
PADDED = ConvSpec(1, 8, 6, 7, 8, 3, 3, padding=(1, 1, 1, 1), bias=True, relu=True)
FLAT = ConvSpec(2, 8, 4, 4, 8, 1, 1, residual=True)


@pytest.mark.parametrize(
    ("lines", "copies"),
    [
        (Lines(ConvSpec(1, 1, 14, 14, 1, 1, 1), 16, 14, 14), 1),
        # A column's taps are whole vectors apart, or every second of them is.
        (Lines(ConvSpec(1, 1, 14, 14, 1, 3, 3, padding=(1, 1, 1, 1)), 16, 14, 16), 3),
        (Lines(ConvSpec(1, 1, 7, 7, 1, 3, 3, padding=(1, 1, 1, 1)), 16, 7, 8), 6),
        # Of four phases one has two columns and one row each.
        (Lines(ConvSpec(1, 1, 32, 32, 1, 3, 3, padding=(1, 1, 1, 1), stride=(2, 2)), 16, 4, 16), 6),
    ],
)
def test_every_tap_begins_with_a_vector(lines, copies):
    assert len(lines.copies) == copies
    assert not (lines.places() % lines.lanes).any() and lines.channel % lines.lanes == 0
    assert lines.places().max() + lines.vectors * lines.lanes <= lines.channel


def test_a_map_of_whole_vectors_is_read_where_it_lies():
    lines = Lines(ConvSpec(1, 1, 28, 28, 1, 1, 1), 16, 4, 28)
    assert lines.is_direct and lines.channel == 28 * 28
    assert not dataclasses.replace(lines, rows=1).is_direct
    assert not Lines(ConvSpec(1, 1, 14, 14, 1, 1, 1), 16, 14, 14).is_direct


@pytest.mark.parametrize("spec", [PADDED, FLAT, dataclasses.replace(PADDED, groups=2, stride=(2, 1), dilation=(1, 2))])
@pytest.mark.parametrize(("channels", "filters"), [(8, 8), (2, 8), (8, 4), (1, 4)])
def test_steps_and_tasks_change_no_sum(spec, channels, filters):
    """Of one step and several, packed or not, all filters a task or some."""
    weight = random_weight(spec, 0.3, "unstructured", 1, True)
    case, channels = Case(spec, weight, 3, integers=True), min(channels, spec.weight_shape[1])
    for lines in tiles(spec, CPU)[::2]:
        space = LineSpace("csr_cpu", lines, int(np.count_nonzero(weight)), threads=1)
        kernel = apply_decisions(space, weight, {"channels": channels, "filters": filters})
        assert case.worst(kernel, AVX2) == 0, (lines.rows, lines.width)


def test_lists_of_a_step_come_by_their_length():
    weight = random_weight(PADDED, 0.3, "unstructured", 2, True)
    lines = tiles(PADDED, CPU)[0]
    space = LineSpace("csr_cpu", lines, int(np.count_nonzero(weight)), threads=1)
    values, places, ends, order = space.packed(weight, {"channels": 4, "filters": 8})
    lengths = np.diff(ends).reshape(2, 8)
    assert (np.diff(lengths, axis=1) >= 0).all() and values.size == places.size == ends[-1]
    counted = np.count_nonzero(weight.reshape(8, 2, -1), axis=2).T
    np.testing.assert_array_equal(np.take_along_axis(counted, order.reshape(2, 8), 1), lengths)


@pytest.mark.parametrize(
    "spec",
    [
        # Two parts of seven vectors, and read where they lie; three parts of which the last is shorter; strides.
        ConvSpec(1, 4, 2, 112, 8, 1, 1, relu=True),
        ConvSpec(2, 2, 3, 211, 8, 3, 3, padding=(1, 1, 1, 1), bias=True),
        ConvSpec(1, 2, 5, 250, 8, 3, 3, padding=(1, 1, 1, 1), stride=(2, 2), residual=True),
    ],
)
def test_a_long_row_is_cut_into_parts(spec):
    (only,) = tiles(spec, CPU)
    assert only.parts > 1 and only.vectors <= CPU.registers - 3
    assert only.is_direct == (spec.w == 112)
    case = Case(spec, random_weight(spec, 0.4, "unstructured", 1, True), 3, integers=True)
    for filters in (4, 8):
        space = LineSpace("csr_cpu", only, int(np.count_nonzero(case.weight)), threads=1)
        assert case.worst(apply_decisions(space, case.weight, {"channels": 2, "filters": filters}), AVX2) == 0


def test_sums_fit_the_registers():
    assert all(each.vectors <= CPU.registers - 3 for each in tiles(PADDED, CPU))


def test_threads_get_tasks():
    """Where a map is one tile, several threads have some filters each."""
    spec = ConvSpec(1, 64, 7, 7, 64, 1, 1)
    assert ranked(spec, 400, CPU, 1)[0].filters == 64
    best = ranked(spec, 400, CPU, 8)[0]
    assert best.lines.tiles * spec.k // best.filters > 4
    assert cycles(400, best, 8) <= cycles(400, best._replace(filters=64), 8)


def test_a_buffer_beyond_32_bit_indices_is_refused():
    spec = ConvSpec(2**28, 1, 1, 1, 1, 1, 1)
    with pytest.raises(NotApplicable, match="32-bit"):
        LineSpace("csr_cpu", tiles(spec, CPU)[0], 1, threads=1)
