"""What a block of filters stores is asked for while its sums are computed."""

import pytest
import tvm
import tvm_ffi
from tvm import sym, te, tirx
from tvm.ir import Call, Op
from tvm.s_tir import Schedule
from tvm.tirx import For
from tvm.tirx import transform as t

from tvm_sparse.codegen import lowering
from tvm_sparse.codegen.cpu.prefetched_outputs import MOST_LINES
from tvm_sparse.codegen.lowering import folding_passes
from tvm_sparse.codegen.tir.tir_builder import integer, substituted
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.errors import BuildError
from tvm_sparse.scheduling.annotations import STORED
from tvm_sparse.scheduling.cpu.filters import FilterSpace
from tvm_sparse.target.cpu_info import CpuInfo
from tvm_sparse.target.resolve import resolve_target

TARGET = resolve_target({"kind": "llvm", "num-cores": 1})


def asked(spec: ConvSpec, vectors: int = 2, threads: int = 1) -> tuple[FilterSpace, dict[str, list[int]]]:
    """A space for `spec`, and what all tiles of all its tasks ask for, by tensors and places; none without a loop."""
    space = FilterSpace("dense_cpu", spec, CpuInfo(16, "zmm", True), vectors, threads)
    with TARGET:
        lowered = tvm.transform.Sequential([t.BindTarget(TARGET), *folding_passes()])(space.scheduled().mod)
    loops: list[For] = []
    tvm_ffi.structural_walk(lowered["main"].body, (For, loops.append))
    tiles = [each for each in loops if STORED in each.annotations]
    calls: list[Call] = []
    for each in tiles:
        tvm_ffi.structural_walk(each.body, (Call, calls.append))
    loads = [each.args[0].args[0] for each in calls if each.op.same_as(Op.get("tirx.prefetch"))]
    around = [each for each in loops for inner in tiles if encloses(each, inner)]
    places: dict[str, list[int]] = {}
    for load in loads:
        if not load.source.name.startswith(space.func.params[1].name):
            places.setdefault(load.source.name, []).extend(values(load.indices[0], around))
    return space, places


def encloses(outer: For, inner: For) -> bool:
    within: list[For] = []
    tvm_ffi.structural_walk(outer, (For, within.append))
    return any(each.same_as(inner) for each in within)


def values(index: tirx.Expr, loops: list[For]) -> list[int]:
    """An index at all turns of `loops`."""
    if not loops:
        return [int(sym.Analyzer().simplify(index))]
    loop, *rest = loops
    turns = range(int(loop.min), int(loop.min) + int(loop.extent))
    return [value for turn in turns for value in values(substituted(index, loop.loop_var, integer(turn)), rest)]


@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("threads", [1, 3])
def test_all_lines_of_the_output_are_asked_for(residual, threads):
    spec = ConvSpec(1, 8, 32, 32, 64, 1, 1, bias=True, residual=residual)
    space, places = asked(spec, threads=threads)
    assert spec.k // space.cut.filters == 2
    assert set(places) == ({"out", "residual"} if residual else {"out"})
    for found in places.values():
        assert sorted({*found}) == list(range(0, 64 * 32 * 32, 16))
        # Rounding up, the last tile asks for the last line again.
        assert len(found) < 1.1 * 64 * 32 * 32 / 16


def test_several_images_are_asked_for_in_turn():
    spec = ConvSpec(2, 4, 28, 28, 32, 1, 1)
    _, places = asked(spec)
    covered = {place + i for place in places["out"] for i in range(16)}
    assert covered >= {*range(2 * 32 * 28 * 28)}
    assert len(places["out"]) < 1.1 * 2 * 32 * 28 * 28 / 16


@pytest.mark.parametrize(
    "spec",
    [
        # A small map, filters that no blocks divide, and channels in several blocks.
        ConvSpec(1, 8, 14, 14, 64, 1, 1),
        ConvSpec(1, 8, 32, 32, 24, 1, 1),
        ConvSpec(1, 512, 28, 28, 64, 1, 1),
    ],
    ids=lambda spec: spec.key,
)
def test_others_ask_for_nothing(spec):
    assert asked(spec)[1] == {}


def test_a_lone_tile_asks_for_what_can_be_on_its_way():
    func = te.create_prim_func([x := te.placeholder((64, 64), name="x"), te.compute((64, 64), lambda i, j: x[i, j])])
    sch = Schedule(func.with_attr("global_symbol", "main"))
    row, column = sch.get_loops(sch.get_child_blocks(sch.get_sblock("root"))[0])
    sch.annotate(row, STORED, [64, 64, 64])
    sch.vectorize(column)
    lowered = lowering.folding_passes()
    with TARGET:
        body = tvm.transform.Sequential([t.BindTarget(TARGET), *lowered])(sch.mod)["main"].body
    calls: list[Call] = []
    tvm_ffi.structural_walk(body, (Call, calls.append))
    assert 0 < sum(each.op.same_as(Op.get("tirx.prefetch")) for each in calls) <= 2 * MOST_LINES


def test_a_function_that_stores_no_output_is_refused():
    x = te.placeholder((8, 4), name="x")
    y = te.compute((8, 4), lambda i, j: x[i, j], name="y")
    func = te.create_prim_func([x, y])
    sch = Schedule(func.with_attr("global_symbol", "main"))
    row, _ = sch.get_loops(sch.get_sblock("y"))
    sch.annotate(row, STORED, [1, 1, 1])
    module = sch.mod
    broken = module["main"]
    module["main"] = tirx.PrimFunc(list(broken.params)[::-1], broken.body, broken.ret_type, broken.attrs)
    with TARGET, pytest.raises(BuildError, match="function main: a loop is to fetch what is stored"):
        tvm.transform.Sequential([t.BindTarget(TARGET), *folding_passes()])(module)
