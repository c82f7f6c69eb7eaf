"""Sums of several steps: the first step begins them, and the last one stores what comes of them."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import te, tirx
from tvm.s_tir import Schedule

from tvm_sparse.codegen.lowering import build, folding_passes
from tvm_sparse.errors import BuildError
from tvm_sparse.scheduling.annotations import STEPS
from tvm_sparse.target.resolve import resolve_target

ROWS, COLUMNS, STEP, TILE = 24, 60, 10, 4


def row_sums(*, annotated: bool = True, tile_of_output: int = TILE) -> tirx.PrimFunc:
    """Sums of rows that are squared as they are stored, by tiles of rows and steps of columns."""
    x = te.placeholder((ROWS, COLUMNS), "float32", name="x")
    c = te.reduce_axis((0, COLUMNS), "c")
    sums = te.compute((ROWS,), lambda i: te.sum(x[i, c], axis=c), name="sums")
    y = te.compute((ROWS,), lambda i: sums[i] * sums[i], name="y")
    sch = Schedule(te.create_prim_func([x, y]).with_attr("global_symbol", "main"))
    block = sch.get_sblock("sums")
    i, c = sch.get_loops(block)
    tile, row = sch.split(i, [None, TILE])
    step, column = sch.split(c, [None, STEP])
    sch.reorder(step, tile, column, row)
    sch.unroll(row)
    sch.decompose_reduction(block, step)
    sch.split(sch.get_loops(sch.get_sblock("y"))[0], [None, tile_of_output])
    if annotated:
        sch.annotate(tile, STEPS, 1)
    return sch.mod["main"]


def lowered(func: tirx.PrimFunc) -> str:
    target = resolve_target({"kind": "llvm", "num-cores": 1})
    passes = [tirx.transform.BindTarget(target), *folding_passes()]
    return str(tvm.transform.Sequential(passes)(tvm.IRModule.from_expr(func))["main"].script())


@pytest.mark.parametrize("annotated", [True, False])
def test_sums_are_the_same(annotated):
    kernel = build(row_sums(annotated=annotated), resolve_target({"kind": "llvm", "num-cores": 1}))["main"]
    x = np.random.default_rng(1).integers(-4, 5, (ROWS, COLUMNS)).astype(np.float32)
    y = tvm.runtime.tensor(np.full(ROWS, np.nan, np.float32))
    kernel(tvm.runtime.tensor(x), y)
    assert np.array_equal(y.numpy(), x.sum(1) ** 2)


def test_first_and_last_step_do_what_loops_before_and_behind_did():
    first, last = "if c_0 == 0:", f"if c_0 == {COLUMNS // STEP - 1}:"
    script, unmerged = lowered(row_sums()), lowered(row_sums(annotated=False))
    assert script.index(first) < script.index("+ x_1") < script.index(last) < script.index("y_1[")
    assert first not in unmerged and last not in unmerged


def test_other_tiles_behind_are_refused():
    with pytest.raises(BuildError, match="function main: a loop over steps is to begin and to end sums"):
        lowered(row_sums(tile_of_output=3))
