"""The next block of weights is asked for; that kernels are right is in tests/scheduling/test_cpu_nchwc.py."""

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import sym, te, tirx
from tvm.ir import Call, Op
from tvm.s_tir import Schedule
from tvm.tirx import For
from tvm.tirx import transform as t

from tvm_sparse.codegen import lowering
from tvm_sparse.codegen.cpu.prefetched_weights import MOST_LINES
from tvm_sparse.codegen.lowering import folding_passes
from tvm_sparse.codegen.tir.tir_builder import integer, substituted
from tvm_sparse.conv.conv2d import WEIGHT
from tvm_sparse.conv.nchwc import NCHW
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.errors import BuildError
from tvm_sparse.scheduling.annotations import PREFETCH
from tvm_sparse.scheduling.cpu.nchwc import NCHWcSpace
from tvm_sparse.target.cpu_info import CpuInfo
from tvm_sparse.target.resolve import resolve_target

TARGET = resolve_target({"kind": "llvm", "num-cores": 1})


def asked(spec: ConvSpec) -> tuple[NCHWcSpace, list[list[int]]]:
    """A space for `spec`, and the weights that each tile of the first block asks for, by their places."""
    space = NCHWcSpace("dense_cpu", spec, CpuInfo(16, "zmm", True), NCHW)
    with TARGET:
        lowered = tvm.transform.Sequential([t.BindTarget(TARGET), *folding_passes()])(space.scheduled().mod)
    loops: list[For] = []
    tvm_ffi.structural_walk(lowered["main"].body, (For, loops.append))
    (tiles,) = (each for each in loops if PREFETCH in each.annotations)
    calls: list[Call] = []
    tvm_ffi.structural_walk(tiles.body, (Call, calls.append))
    loads = [each.args[0].args[0] for each in calls if each.op.same_as(Op.get("tirx.prefetch"))]
    # Outputs are asked for too.
    places = [each.indices[0] for each in loads if each.source.name == WEIGHT]
    for loop in loops:
        if not loop.same_as(tiles):
            places = [substituted(each, loop.loop_var, loop.min) for each in places]
    turns = range(int(tiles.extent))
    return space, [[place(each, tiles, turn) for each in places] for turn in turns]


def place(index: tirx.Expr, loop: For, turn: int) -> int:
    """An index at a turn of a loop."""
    return int(sym.Analyzer().simplify(substituted(index, loop.loop_var, integer(turn))))


@pytest.mark.parametrize(
    "spec",
    [
        ConvSpec(1, 64, 14, 14, 64, 3, 3, padding=(1, 1, 1, 1)),
        ConvSpec(1, 256, 7, 7, 128, 1, 1, bias=True, residual=True),
        ConvSpec(1, 32, 28, 28, 64, 1, 1),
    ],
    ids=lambda spec: spec.key,
)
def test_tiles_ask_for_the_next_block_line_by_line(spec):
    space, turns = asked(spec)
    (weight,) = space.constants(np.zeros(spec.weight_shape, np.float32))
    block = weight[0, 0].size
    assert len(turns) > 1
    assert len({len(turn) for turn in turns}) == 1
    places = [each for turn in turns for each in turn]
    assert places[0] == block
    assert len(set(places)) == len(places)
    assert set(range(block, 2 * block, 16)) <= set(places)
    # Rounding up, no more than one line a tile and what it makes of it.
    assert len(places) < block // 16 + len(turns)


def test_a_lone_tile_asks_for_what_can_be_on_its_way():
    _, turns = asked(ConvSpec(1, 256, 1, 8, 64, 3, 3, padding=(1, 1, 1, 1)))
    assert [len(turn) for turn in turns] == [MOST_LINES]


def test_a_loop_that_loads_no_weights_is_refused():
    func = te.create_prim_func([x := te.placeholder((8, 4), name="x"), te.compute((8, 4), lambda i, j: x[i, j])])
    sch = Schedule(func.with_attr("global_symbol", "main"))
    row, _ = sch.get_loops(sch.get_child_blocks(sch.get_sblock("root"))[0])
    sch.annotate(row, PREFETCH, 4)
    with pytest.raises(BuildError, match="function main: a loop does not load weights, found 1 loads"):
        lowering.build(sch.mod["main"].with_attr("tirx.is_scheduled", True), TARGET)
