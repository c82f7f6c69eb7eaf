"""Which models say what their calls read and write, and that they say it rightly."""

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax.backend.cuda import pipeline as cuda
from tvm.target import Target

from tvm_sparse.compiler.layouts.plan_scratch import plan_scratch
from tvm_sparse.compiler.rewriting.side_by_side import REUSE, side_by_side
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.cudnn.plan import PRECOMP, Plan
from tvm_sparse.runtime.workspace import NEXT_CALL, Machine, Workspace
from tvm_sparse.scheduling.cudnn_calls import convolution_call

HOPPER = Target({"kind": "cuda", "arch": "sm_90"}, host={"kind": "llvm"})
CPU, SIZE = tvm.cpu(), 32


def model(branches: int, size: int = SIZE, length: int = 2) -> tvm.IRModule:
    """Relu, then so many branches of `length` operators, whose sum and its view are the outputs."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((size,), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            first = builder.emit(relax.op.nn.relu(x))
            ends = [first] * branches
            for operator in (relax.op.sin, relax.op.exp)[:length]:
                ends = [builder.emit(operator(each)) for each in ends]
            total = ends[0]
            for each in ends[1:]:
                total = builder.emit(relax.op.add(total, each))
            found = builder.emit_output((total, builder.emit(relax.op.reshape(total, (2, size // 2)))))
        builder.emit_func_output(found)
    legal = [relax.transform.LegalizeOps(), *cuda.dataflow_lower_passes(HOPPER)]
    return tvm.transform.Sequential(legal)(builder.get())


def finalized(module: tvm.IRModule) -> tvm.IRModule:
    return side_by_side(cuda.finalize_passes(HOPPER), HOPPER)(module)


def announcements(module: tvm.IRModule) -> int:
    return module["main"].script().count(NEXT_CALL)


def test_branches_are_announced():
    """Of a model in a row, whose branches are too short, or of large tensors, nothing changes."""
    branched, row = finalized(model(3)), finalized(model(1))
    assert announcements(branched) == 1 + 3 * 2 + 2 and announcements(row) == 0
    assert announcements(finalized(model(2, length=1))) == 0
    assert "kill_object" in row["main"].script() and "kill_object" not in branched["main"].script()
    assert announcements(finalized(model(3, size=1 << 20))) == 0


def test_memory_is_used_again_by_calls_that_run_after_its_users_alone():
    """Of three branches, three ends and the first tensor at a time; the two sums take what ends have left."""
    assert finalized(model(3))["main"].script().count("alloc_storage") == 7


def test_tvm_still_has_the_passes_that_are_left_out():
    assert set(REUSE) <= {each.info.name for each in cuda.finalize_passes(HOPPER)}


def test_every_call_says_what_it_writes_and_reads():
    """As the CPU runs it; who writes where others have read or written runs after them in any case."""
    with HOPPER:
        executable = tvm.compile(
            finalized(model(3)), Target("llvm"), relax_pipeline=lambda module, _context=None: module
        )
    calls: list[list[int]] = []
    machine = Machine(executable, CPU)
    workspace = Workspace(lambda size_bytes: tvm.runtime.empty((size_bytes,), "uint8", CPU))
    x = tvm.runtime.tensor(np.linspace(-1, 1, SIZE, dtype=np.float32))
    machine.run([x], workspace)
    found = machine.run([x], workspace, lambda _outputs, tensors: calls.append([each.data_ptr() for each in tensors]))
    expected = 3 * np.exp(np.sin(np.maximum(x.numpy(), 0)))
    np.testing.assert_allclose(found[0].numpy(), expected, rtol=1e-6)
    np.testing.assert_allclose(found[1].numpy().ravel(), expected, rtol=1e-6)
    writers, users, earlier = {x.data_ptr(): set[int]()}, dict[int, set[int]](), list[set[int]]()
    for number, (output, *inputs) in enumerate(calls):
        assert set(inputs) <= writers.keys() and output not in inputs
        parents = set[int]().union(*(writers[each] for each in inputs))
        earlier.append(parents.union(*(earlier[each] for each in parents)))
        assert users.get(output, set()) <= earlier[number]
        writers[output], users[output] = {number}, {number}
        for each in inputs:
            users.setdefault(each, set()).add(number)
    assert len(calls) == announcements(finalized(model(3)))


@pytest.mark.parametrize(("size", "are_branches"), [(14, True), (224, False)])
def test_what_cudnn_may_ask_for_is_no_memory_in_use(size, are_branches):
    """Of four branches of two convolutions each asks for 8 MB."""
    plan = Plan(ConvSpec(1, 64, size, size, 64, 1, 1, dtype="float16"), "nhwc", PRECOMP, "fused", False, False)
    builder, shape = relax.BlockBuilder(), (1, size, size, 64)
    kernel = builder.add_func(convolution_call(plan), "convolution")
    kind = relax.TensorType(shape, "float16")
    x, weight = relax.Var("x", kind), relax.Var("weight", relax.TensorType((64, 1, 1, 64), "float16"))
    with builder.function("main", [x, weight]):
        with builder.dataflow():
            ends = [x] * 4
            for _ in range(2):
                ends = [builder.emit(relax.call_tir(kernel, [each, weight], kind)) for each in ends]
            total = ends[0]
            for each in ends[1:]:
                total = builder.emit(relax.op.add(total, each))
            found = builder.emit_output(total)
        builder.emit_func_output(found)
    lowered = [plan_scratch, relax.transform.LegalizeOps(), *cuda.dataflow_lower_passes(HOPPER)]
    module = builder.get()
    for each in lowered:
        module = each(module)
    assert announcements(finalized(module)) == (4 * 2 + 3 if are_branches else 0)


# Parsed where it is used: TVM looks at the whole stack, in which collecting tests is a second.
KEEPING = '''
@I.ir_module
class Keeping:
    """A kernel with an array of its own, and one that writes to what it is given."""

    @T.prim_func(s_tir=True)
    def scratch(x: T.Buffer((32,), "float32"), y: T.Buffer((32,), "float32")):
        z = T.sblock_alloc_buffer((32,))
        for i in range(32):
            with T.sblock("z"):
                vi = T.axis.spatial(32, i)
                z[vi] = x[vi] + T.float32(1)
        for i in range(32):
            with T.sblock("y"):
                vi = T.axis.spatial(32, i)
                y[vi] = z[vi] + T.float32(1)

    @T.prim_func(s_tir=True)
    def plain(x: T.Buffer((32,), "float32"), y: T.Buffer((32,), "float32")):
        for i in range(32):
            with T.sblock("y"):
                vi = T.axis.spatial(32, i)
                y[vi] = x[vi] + T.float32(1)
'''


@pytest.mark.parametrize("kernel", ["plain", "scratch"])
def test_kernels_that_keep_something_to_themselves_follow_each_other(kernel):
    keeping = tvm.script.from_source(KEEPING)
    builder = relax.BlockBuilder(keeping)
    x, kind = relax.Var("x", relax.TensorType((32,), "float32")), relax.TensorType((32,), "float32")
    callee = keeping.get_global_var(kernel)
    with builder.function("main", [x]):
        with builder.dataflow():
            found = builder.emit_output([builder.emit(relax.call_tir(callee, [x], kind)) for _ in range(3)])
        builder.emit_func_output(found)
    module = finalized(tvm.transform.Sequential(cuda.dataflow_lower_passes(HOPPER))(builder.get()))
    assert announcements(module) == (3 if kernel == "plain" else 0)
