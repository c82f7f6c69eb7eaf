"""Vectors that overlap; that kernels are right is in tests/scheduling/test_cpu_nchwc.py."""

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import te, tirx
from tvm.s_tir import Schedule

from tvm_sparse.codegen import lowering
from tvm_sparse.codegen.lowering import folding_passes
from tvm_sparse.scheduling.annotations import VECTORS
from tvm_sparse.target.resolve import resolve_target

TARGET = resolve_target({"kind": "llvm", "num-cores": 1})


def scheduled(read, shape, out, *keys):
    """A function that fills `out` elements with what `read` makes of a tensor; its loop has annotations."""
    x = te.placeholder(shape, name="x")
    func = te.create_prim_func([x, te.compute((out,), lambda i: read(x, i), name="y")])
    sch = Schedule(func.with_attr("global_symbol", "main"))
    (loop,) = sch.get_loops(sch.get_sblock("y"))
    for key, value in keys:
        sch.annotate(loop, key, value)
    return sch.mod["main"].with_attr("tirx.is_scheduled", True)


def found_in(func, kind):
    with TARGET:
        passes = [tirx.transform.BindTarget(TARGET), *folding_passes()]
        lowered = tvm.transform.Sequential(passes)(tvm.IRModule({"main": func}))
    found = []
    tvm_ffi.structural_walk(lowered["main"].body, (kind, found.append))
    return found


@pytest.mark.parametrize("turns", [4, 7, 8, 11])
def test_vectors_cover_a_loop_that_they_do_not_divide(turns):
    func = scheduled(lambda x, i: x[i] + 1.0, (turns,), turns, (VECTORS, 4))
    stored = found_in(func, tirx.BufferStore)
    assert stored and all(isinstance(each.indices[0], tirx.Ramp) for each in stored)
    x, y = np.arange(turns, dtype=np.float32), tvm.runtime.tensor(np.full(turns, np.nan, np.float32))
    lowering.build(func, TARGET)["main"](tvm.runtime.tensor(x), y)
    assert np.array_equal(y.numpy(), x + 1)
