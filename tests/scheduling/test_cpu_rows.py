"""The space of CPU kernels by rows: default tiles, and what is not worth a trial."""

import math

import numpy as np
import pytest

from tvm_sparse.conv.random_weights import normal_weight
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.errors import UsageError
from tvm_sparse.schedules import dense_cpu, folded_cpu
from tvm_sparse.schedules.lookup import find_space
from tvm_sparse.target.resolve import resolve_target

AVX2 = resolve_target('{"kind":"llvm","mcpu":"x86-64-v3","num-cores":1}')


def test_code_in_too_many_blocks_is_refused() -> None:
    """LLVM took more than 90 s for 8,192 of them; defaults have few."""
    spec = ConvSpec(1, 512, 28, 28, 128, 1, 1)
    pattern = SparsityPattern.of(normal_weight(spec, 0.1, 0).astype(np.float32))
    (space,) = (each for each in folded_cpu.spaces(spec, pattern, AVX2) if each.variant == "rows4x28-direct")
    assert space.obstacle_of(space.scheduled()) == ""
    many = space.scheduled({"channels": 4, "filters": 2, "row_groups": 7, "vectors": [7, 2, 1]})
    assert space.obstacle_of(many) == "8192 blocks of assembly, at most 2048"


@pytest.mark.parametrize(
    ("size", "taps", "tile"), [(56, 1, (8, 2)), (28, 1, (16, 1)), (48, 3, (8, 3)), (112, 7, (8, 1))]
)
def test_multiply_adds_that_read_memory_get_tiles_of_many_filters(size: int, taps: int, tile: tuple[int, int]) -> None:
    """Of AVX-512 a default tile has two or three vectors by eight filters, or one by sixteen; dense or folded."""
    target = resolve_target('{"kind":"llvm","mcpu":"x86-64-v4","num-cores":1}')
    layer = ConvSpec(1, 16, size, size, 32, taps, taps, padding=(taps // 2,) * 4)
    for schedule, density in ((dense_cpu, 1.0), (folded_cpu, 0.1)):
        pattern = SparsityPattern.of(normal_weight(layer, density, 0).astype(np.float32))
        rows = [each for each in schedule.spaces(layer, pattern, target) if each.variant.startswith("rows")]
        found = [each.starts()[0] for each in rows]
        assert tile in [(each["filters"], math.prod(each["vectors"][1:])) for each in found], found


@pytest.mark.parametrize(
    ("mcpu", "stride", "first"), [("x86-64-v4", 2, 32), ("x86-64-v4", 1, 58), ("x86-64-v3", 2, 29)]
)
def test_rows_of_strided_columns_begin_with_lines_of_a_cache(mcpu: str, stride: int, first: int) -> None:
    """Where a vector is as long as a line; others are found by their names, as records have them, but not offered."""
    target = resolve_target({"kind": "llvm", "mcpu": mcpu, "num-cores": 1})
    spec = ConvSpec(1, 8, 56, 56, 8, 3, 3, stride=(stride, stride), padding=(1,) * 4)
    pattern = SparsityPattern.of(normal_weight(spec, 0.1, 0).astype(np.float32))
    offered = folded_cpu.spaces(spec, pattern, target)
    assert offered[0].layout.row_stride == first
    for pack in ("block", "root"):
        name = f"folded_cpu:rows{7 if stride == 2 else 8}x{64 // stride}-{pack}"
        assert find_space(name, spec, pattern, target).name == name
    with pytest.raises(UsageError, match="it has no variant 'rows7x3-block'"):
        find_space("folded_cpu:rows7x3-block", spec, pattern, target)


@pytest.mark.parametrize(
    ("spec", "first"),
    [
        (ConvSpec(1, 1, 1, 16000, 256, 1, 10, stride=(1, 5)), "rows"),
        (ConvSpec(1, 3, 224, 224, 64, 3, 3, padding=(1,) * 4), "rows"),
        # A small output, and sums of many products.
        (ConvSpec(1, 1, 28, 28, 32, 3, 3, padding=(1,) * 4), "filters"),
        (ConvSpec(1, 64, 56, 56, 64, 3, 3, padding=(1,) * 4), "filters"),
    ],
)
def test_where_storing_takes_most_of_the_time_outputs_are_not_transposed(spec: ConvSpec, first: str) -> None:
    for mcpu in ("x86-64-v3", "x86-64-v4"):
        target = resolve_target({"kind": "llvm", "mcpu": mcpu, "num-cores": 1})
        offered = dense_cpu.spaces(spec, SparsityPattern.of(normal_weight(spec, 1.0, 0)), target)
        assert offered[0].variant.startswith(first) and {"filters"} < {each.variant for each in offered}
