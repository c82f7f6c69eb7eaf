"""Columns loaded and stored as rows and shuffles; that kernels are right is in tests/scheduling."""

import pytest
import tvm
import tvm_ffi
from tvm import te, tirx
from tvm.s_tir import Schedule
from tvm.tirx import transform as t

from tvm_sparse.codegen import lowering
from tvm_sparse.codegen.lowering import folding_passes
from tvm_sparse.conv.nchwc import NCHW
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.errors import BuildError
from tvm_sparse.scheduling.annotations import TRANSPOSE
from tvm_sparse.scheduling.cpu.channels import ChannelSpace
from tvm_sparse.scheduling.cpu.nchwc import NCHWcSpace
from tvm_sparse.scheduling.space import Space
from tvm_sparse.target.cpu_info import CpuInfo
from tvm_sparse.target.resolve import resolve_target

TARGET = resolve_target({"kind": "llvm", "num-cores": 1})


def shuffles_of(space: Space) -> int:
    with TARGET:
        lowered = tvm.transform.Sequential([t.BindTarget(TARGET), *folding_passes()])(space.scheduled().mod)
    shuffles: list[tirx.Shuffle] = []
    tvm_ffi.structural_walk(lowered["main"].body, (tirx.Shuffle, shuffles.append))
    return len(shuffles)


@pytest.mark.parametrize(
    ("width", "filters", "residual", "shuffles"),
    [
        # Four vectors of 8 filters: 8 shuffles transpose them, and each of 8 rows is taken from its vector.
        (14, 16, False, 16),
        (7, 16, False, 16),
        # A residual's rows are joined to four vectors first.
        (7, 16, True, 16 + 4 + 8),
        # A square alone.
        (7, 12, False, 8),
        # Where filters do not come in fours, the sums of pixels that do are transposed, and others gathered.
        (14, 10, True, 8),
        (7, 10, False, 0),
    ],
)
def test_sums_of_filters_are_transposed(width, filters, residual, shuffles):
    spec = ConvSpec(1, 4, width, width, filters, 1, 1, residual=residual)
    assert shuffles_of(NCHWcSpace("dense_cpu", spec, CpuInfo(8, "ymm"), NCHW)) == shuffles


def test_rows_of_channels_are_transposed_as_they_are_read_and_stored():
    spec = ConvSpec(1, 16, 9, 9, 16, 3, 3, stride=(2, 2), groups=16)
    assert [shuffles_of(ChannelSpace("dense_cpu", spec, CpuInfo(16, "zmm", True), each)) for each in (4, 8, 16)] == [
        8 + 8,
        12 + 16,
        12 + 24,
    ]


def test_a_loop_without_columns_is_refused():
    func = te.create_prim_func([x := te.placeholder((8, 4), name="x"), te.compute((8, 4), lambda i, j: x[i, j])])
    sch = Schedule(func.with_attr("global_symbol", "main"))
    row, column = sch.get_loops(sch.get_child_blocks(sch.get_sblock("root"))[0])
    sch.annotate(row, TRANSPOSE, 1)
    sch.vectorize(column)
    with pytest.raises(BuildError, match="function main: a loop has no columns, found 0 loads"):
        lowering.build(sch.mod["main"].with_attr("tirx.is_scheduled", True), TARGET)
