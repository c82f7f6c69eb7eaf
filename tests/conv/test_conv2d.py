"""The computes before any schedule: each is the convolution, whatever its layout."""

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx_zoo import unchecked
from random_convolutions import random_case
from tvm.s_tir import Schedule

from tvm_sparse.conv import reference
from tvm_sparse.conv.conv2d import conv2d
from tvm_sparse.conv.conv2d_rows import RowGroups, conv2d_rows
from tvm_sparse.conv.conv2d_tiles import SpatialTiles, conv2d_tiles
from tvm_sparse.conv.spec import ConvSpec

# What a compute computes is the same without LLVM's optimiser.
TARGET = tvm.target.Target({"kind": "llvm", "opt-level": 0})


def is_exact(func, case):
    """Whether an unscheduled function computes the convolution of an integer-valued case exactly."""
    spec = case.spec
    arguments = reference.random_arguments(spec, case.seed, integers=True)
    weight = np.rint(case.weight * 2).astype(np.float32)
    names = [name for name in ("bias", "residual") if name in arguments]
    y = tvm.runtime.tensor(np.full(spec.output_shape, np.nan, np.float32))
    values = [arguments["x"], weight, *(arguments[name] for name in names)]
    with unchecked():
        built = tvm.compile(func, TARGET)
    built["main"](*map(tvm.runtime.tensor, values), y)
    expected = reference.reference(spec, arguments["x"], weight, arguments.get("bias"), arguments.get("residual"))
    return np.array_equal(y.numpy(), expected.value)


def choosing(data):
    return lambda options: data.draw(st.sampled_from(options))


EXAMPLES = pytest.mark.parametrize("examples", [12, pytest.param(50, marks=pytest.mark.exhaustive)])


def tried(check, examples):
    """Try so many random choices, the same ones each time."""
    settings(max_examples=examples, derandomize=True, deadline=None)(given(st.data())(check))()


@EXAMPLES
def test_textbook_form(examples):
    def check(data):
        case = random_case(choosing(data))
        assert is_exact(conv2d(case.spec), case), case

    tried(check, examples)


@EXAMPLES
def test_rows_in_any_layout(examples):
    tried(rows_in_any_layout, 2 * examples)


def rows_in_any_layout(data):
    choose = choosing(data)
    case = random_case(choose)
    spec = case.spec
    rows = choose([rows for rows in range(1, spec.out_h + 1) if spec.out_h % rows == 0])
    lanes = choose((4, 8, 16, 5))
    layout = RowGroups.of(spec, rows, lanes, RowGroups.of(spec, rows, lanes).row_stride + choose((0, 1, 7)))
    assert layout.waste(spec) >= 1
    assert is_exact(conv2d_rows(spec, layout, direct=layout.reads_input(spec)), case), (layout, case)


@EXAMPLES
def test_tiles_of_any_size(examples):
    tried(tiles_of_any_size, 2 * examples)


def tiles_of_any_size(data):
    choose = choosing(data)
    case = random_case(choose)
    tiles = SpatialTiles(case.spec, case.spec.out_h + choose((0, 1, 3)), choose(range(1, case.spec.out_w + 2)))
    assert is_exact(conv2d_tiles(tiles), case), (tiles, case)


@pytest.mark.parametrize(
    ("changes", "reads"),
    [
        ({}, True),
        ({"padding": (0, 1, 0, 0)}, False),
        ({"stride": (1, 2)}, False),
        # Three rows of 14 need 48 floats of a channel of 42.
        ({"h": 3, "w": 14}, False),
    ],
)
def test_direct_layouts_stay_inside_their_channel(changes, reads):
    spec = ConvSpec(**{"n": 1, "c": 2, "h": 8, "w": 8, "k": 2, "r": 1, "s": 1, **changes})
    assert RowGroups.of(spec, spec.out_h, 16).reads_input(spec) is reads


def test_vectors_keep_all_lanes_where_rows_end_within_one():
    """14 pixels of a vector of 16: stages that are computed at the output's loops must not shrink to the 14."""
    spec = ConvSpec(1, 2, 14, 14, 4, 3, 3, padding=(1, 1, 1, 1))
    schedule = Schedule(conv2d_rows(spec, RowGroups.of(spec, 2, 16, 16)))
    conv, out = schedule.get_sblock("conv"), schedule.get_sblock("out")
    schedule.compute_at(conv, schedule.get_loops(out)[1], preserve_unit_loops=True)
    lanes = schedule.get(schedule.get_loops(conv)[-4])
    assert int(lanes.extent) == 16
