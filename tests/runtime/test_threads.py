"""A compiled model runs with the number of threads of its target, however the process was started."""

import os
import threading
import timeit

import numpy as np
import pytest
import tvm
import tvm.script
import tvm_ffi

from tvm_sparse.runtime.compiled_model import CompiledModel
from tvm_sparse.runtime.cpu.short_calls import ShortCalls
from tvm_sparse.runtime.cpu.threads import use_threads
from tvm_sparse.runtime.signature import Signature, TensorSpec

# Copies its input, and tells which threads ran a parallel loop.
NOTE_THREADS = """
@I.ir_module
class Module:
    @T.prim_func
    def note(x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")):
        for i in T.parallel(64):
            T.evaluate(T.call_packed("tests.note_thread", i))
        for i in range(4):
            y[i] = x[i]

    @R.function
    def main(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        cls = Module
        with R.dataflow():
            y = R.call_tir(cls.note, (x,), out_ty=R.Tensor((4,), "float32"))
            R.output(y)
        return y
"""
SPEC = TensorSpec("x", (4,), "float32")
X = np.ones(4, np.float32)


@pytest.fixture(scope="module")
def threads_of():
    """A function from a number of cores to the threads that run a model for so many."""
    seen = set()
    tvm_ffi.register_global_func("tests.note_thread", lambda _: seen.add(threading.get_native_id()), override=True)
    executable = tvm.compile(tvm.script.from_source(NOTE_THREADS), tvm.target.Target("llvm"))
    models = {
        cores: CompiledModel(
            executable, tvm.target.Target({"kind": "llvm", "num-cores": cores}), Signature((SPEC,), (SPEC,), True), []
        )
        for cores in (1, 2, 64)
    }

    def count(cores):
        seen.clear()
        np.testing.assert_array_equal(models[cores](X), X)
        return set(seen)

    with pytest.MonkeyPatch.context() as patch:
        # However short its calls are.
        patch.setattr(ShortCalls, "threads", property(lambda shares: shares._threads))
        yield count


def cores(most):
    return min(most, len(os.sched_getaffinity(0)))


def test_each_of_two_models_keeps_its_number(threads_of):
    for number in (1, 2, 1, 64, 2):
        assert len(threads_of(number)) == cores(number)


def test_a_thread_that_calls_is_bound_to_no_core_and_goes_by_no_variable(threads_of, monkeypatch):
    """TVM by itself would leave the caller on one core, with as many threads as the environment says."""
    monkeypatch.setenv("TVM_NUM_THREADS", "1")
    found = []

    def call():
        found.append((threads_of(2), os.sched_getaffinity(0)))

    caller = threading.Thread(target=call)
    caller.start()
    caller.join()
    ((used, affinity),) = found
    assert len(used) == cores(2)
    assert affinity == os.sched_getaffinity(0)


def test_a_caller_alone_runs_all_of_it_itself(threads_of):
    assert threads_of(1) == {threading.get_native_id()}


def test_a_call_that_changes_nothing_costs_next_to_nothing():
    use_threads(2)
    assert min(timeit.repeat(lambda: use_threads(2), number=1000, repeat=20)) / 1000 < 1e-6
