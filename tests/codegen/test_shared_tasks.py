"""Parallel loops whose tasks threads take one after the other: each is done once, whoever does it."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import te, tirx
from tvm.s_tir import Schedule

from tvm_sparse.codegen.lowering import build, folding_passes
from tvm_sparse.runtime.cpu.threads import use_threads
from tvm_sparse.target.resolve import resolve_target


def counting(tasks: int) -> tirx.PrimFunc:
    """Adds 1 to each of so many rows, one a task, by way of a row that the task allocates."""
    x = te.placeholder((tasks, 600), "float32", name="x")
    row = te.compute(x.shape, lambda i, j: x[i, j] + 1.0, name="row")
    y = te.compute(x.shape, lambda i, j: row[i, 599 - j] + tirx.Cast("float32", i), name="y")
    sch = Schedule(te.create_prim_func([x, y]).with_attr("global_symbol", "main"))
    outer, _ = sch.get_loops(sch.get_sblock("y"))
    sch.compute_at(sch.get_sblock("row"), outer)
    sch.parallel(outer)
    return sch.mod["main"]


def on(threads: int) -> tvm.target.Target:
    return resolve_target({"kind": "llvm", "num-cores": threads})


def lowered(tasks: int, threads: int) -> str:
    module = tvm.IRModule.from_expr(counting(tasks))
    passes = [tirx.transform.BindTarget(on(threads)), *folding_passes()]
    return str(tvm.transform.Sequential(passes)(module)["main"].script())


@pytest.mark.parametrize(
    ("tasks", "threads"), [(2, 2), (7, 2), (9, 4), (64, 3), (501, 16), (1000, 40), (64, 2), (641, 4)]
)
def test_each_task_is_done_once(tasks, threads):
    """With as many threads as the kernel is built for, and with fewer and more."""
    kernel = build(counting(tasks), on(threads))["main"]
    x = np.arange(tasks * 600, dtype=np.float32).reshape(tasks, 600) % 97
    expected = x[:, ::-1] + 1 + np.arange(tasks, dtype=np.float32)[:, None]
    for used in (threads, 1, 2, 64):
        use_threads(used)
        for _ in range(20):
            y = tvm.runtime.tensor(np.full(x.shape, np.nan, np.float32))
            kernel(tvm.runtime.tensor(x), y)
            assert np.array_equal(y.numpy(), expected)


def test_only_more_tasks_than_threads_are_shared():
    assert "_take" in lowered(5, 4) and "_next" in lowered(5, 4)
    for tasks, threads in ((5, 1), (4, 4), (3, 4)):
        assert "_take" not in lowered(tasks, threads)
