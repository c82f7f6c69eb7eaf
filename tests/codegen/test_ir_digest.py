"""Two modules have the same digest where they are the same, in any process, and only there."""

import subprocess
import sys

import numpy as np
import onnx
import pytest
import tvm
import tvm_ffi
import zoo
from tvm import relax

from tvm_sparse.codegen.ir_digest import ir_digest
from tvm_sparse.frontend.prepare import prepare

COLLIDING = (
    [167.0, 202.125, 207.5, 83.25, 95.875, 47.875, 17.25, 90.0],
    [183.125, 206.25, 30.625, 88.375, 41.625, 78.875, 186.5, 31.125],
)
OTHER_PROCESS = """
import sys
from tvm_sparse.frontend.optional_imports import without_torch
with without_torch():
    from tvm_sparse.codegen.ir_digest import ir_digest
    from tvm_sparse.frontend.prepare import prepare
    print(ir_digest(prepare(sys.argv[1]).mod))
"""


def added(constant):
    """``x + constant``."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(constant.shape, str(constant.dtype)))
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(relax.op.add(x, relax.const(constant))))
    return builder.get()


def in_branch(constant):
    """The same, of a parameter that a condition chooses."""
    branches = [added(constant)["main"], added(np.zeros_like(constant))["main"]]
    builder = relax.BlockBuilder()
    condition, x = (
        relax.Var("condition", relax.TensorType((), "bool")),
        relax.Var("x", relax.TensorType((8,), "float32")),
    )
    with builder.function("main", [condition, x]):
        chosen = relax.If(condition, *(relax.SeqExpr([], relax.Call(each, [x])) for each in branches))
        builder.emit_func_output(builder.emit(chosen))
    return builder.get()


def in_attribute(constant):
    module = added(np.zeros(8, np.float32))
    module["main"] = module["main"].with_attr("table", tvm.runtime.tensor(constant))
    return module


@pytest.mark.parametrize("make", [added, in_branch, in_attribute])
def test_constants_that_a_table_s_hash_takes_for_the_same_are_others(make):
    one, other = (make(np.array(values, np.float32)) for values in COLLIDING)
    assert tvm_ffi.structural_hash(one) == tvm_ffi.structural_hash(other)
    assert ir_digest(one) != ir_digest(other)
    assert ir_digest(one) == ir_digest(make(np.array(COLLIDING[0], np.float32)))


def test_shape_and_element_type_count():
    zeros = [np.zeros(8, np.float32), np.zeros((4, 2), np.float32), np.zeros(8, np.int32), np.zeros((), np.float32)]
    assert len({ir_digest(added(each)) for each in zeros}) == len(zeros)


@pytest.mark.parametrize("name", zoo.ONNX)
def test_a_model_that_is_read_again_is_the_same(name, tmp_path):
    onnx.save(zoo.ONNX[name], tmp_path / "m.onnx")
    first, second = (ir_digest(prepare(tmp_path / "m.onnx").mod) for _ in range(2))
    assert first == second


def test_another_process_finds_the_same(tmp_path):
    path = tmp_path / "m.onnx"
    onnx.save(zoo.ONNX["block"], path)
    found = subprocess.run([sys.executable, "-c", OTHER_PROCESS, path], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == ir_digest(prepare(path).mod)
