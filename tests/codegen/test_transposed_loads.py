"""Loads of columns as loads of rows and shuffles; that kernels are right is in tests/scheduling/test_cpu_filters.py."""

import pytest
import tvm
import tvm_ffi
from tvm import te, tirx
from tvm.s_tir import Schedule
from tvm.tirx import transform as t

from tvm_sparse.codegen import lowering
from tvm_sparse.codegen.lowering import folding_passes
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.errors import BuildError
from tvm_sparse.scheduling.annotations import TRANSPOSE
from tvm_sparse.scheduling.cpu_filters import FilterSpace
from tvm_sparse.target.cpu_info import CpuInfo
from tvm_sparse.target.resolve import resolve_target

TARGET = resolve_target({"kind": "llvm", "num-cores": 1})


@pytest.mark.parametrize(("width", "square"), [(14, True), (7, False)])
def test_sums_are_transposed_where_pixels_come_in_fours(width, square):
    space = FilterSpace("dense_cpu", ConvSpec(1, 4, width, width, 16, 1, 1), CpuInfo(8, "ymm"), 2)
    with TARGET:
        lowered = tvm.transform.Sequential([t.BindTarget(TARGET), *folding_passes()])(space.scheduled().mod)
    shuffles = []
    tvm_ffi.structural_walk(lowered["main"].body, (tirx.Shuffle, shuffles.append))
    assert len(shuffles) == (8 if square else 0)


def test_a_loop_that_loads_no_columns_is_refused():
    func = te.create_prim_func([x := te.placeholder((8, 4), name="x"), te.compute((8, 4), lambda i, j: x[i, j])])
    sch = Schedule(func.with_attr("global_symbol", "main"))
    row, column = sch.get_loops(sch.get_child_blocks(sch.get_sblock("root"))[0])
    sch.annotate(row, TRANSPOSE, 1)
    sch.vectorize(column)
    with pytest.raises(BuildError, match="function main: a loop does not load columns, found 0 loads"):
        lowering.build(sch.mod["main"].with_attr("tirx.is_scheduled", True), TARGET)
