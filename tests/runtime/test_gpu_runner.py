"""Calls on a GPU, which the CPU stands for: graphs, addresses, streams, captures, failures. See `fake_cuda`."""

import functools
import gc
import threading
import warnings
import weakref

import numpy as np
import pytest
import tvm
import tvm.script
import tvm_ffi
from fake_cuda import DEVICE, FakeCuda

from tvm_sparse.errors import BuildError
from tvm_sparse.runtime.compiled_model import CompiledModel
from tvm_sparse.runtime.gpu import gpu_failures, gpu_runner
from tvm_sparse.runtime.gpu.cuda_driver import CudaDriver
from tvm_sparse.runtime.gpu.gpu_runner import MOST_IN_PLACE, GpuRunner
from tvm_sparse.runtime.signature import Signature, TensorSpec
from tvm_sparse.runtime.workspace import Workspace

TARGET = tvm.target.Target({"kind": "llvm", "num-cores": 1})
LLVM_DEVICE = tvm.cpu(0)
SIZE = 64
# Two outputs; the first passes through the same memory more than once, so that calls at the same time would show.
SOURCE = """
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor((64,), "float32"), y: R.Tensor((64,), "float32")):
        with R.dataflow():
            a = R.call_dps_packed("tests.add", (x, y), out_ty=R.Tensor((64,), "float32"))
            b = R.call_dps_packed("tests.double", (a,), out_ty=R.Tensor((64,), "float32"))
            c = R.call_dps_packed("tests.add", (b, x), out_ty=R.Tensor((64,), "float32"))
            d = R.call_dps_packed("tests.double", (c,), out_ty=R.Tensor((64,), "float32"))
            e = R.call_dps_packed("tests.LAST", (d, y), out_ty=R.Tensor((64,), "float32"))
            R.output(c, e)
        return RESULT
"""
SPEC = TensorSpec("x", (SIZE,), "float32")


def expected(x, y):
    """What the model returns, by NumPy."""
    c = 2 * (x + y) + x
    return 2 * c + y, c


@functools.cache
def executable_of(last, result):
    return tvm.compile(tvm.script.from_source(SOURCE.replace("LAST", last).replace("RESULT", result)), TARGET)


class Memory:
    """A library of tensors, such as torch, whose memory lives on in graphs; `made` are all that it made."""

    def __init__(self, cuda, allocates_in_graphs=True):
        self.cuda, self.allocates_in_graphs, self.made = cuda, allocates_in_graphs, []

    def empty(self, shape, dtype, device):
        assert self.cuda.mode == 2, "another thread's capture would forbid this one to allocate"
        self.made.append(tvm.runtime.empty(shape, dtype, device))
        return self.made[-1]


class Model:
    """A runner on a GPU of its own, with a caller's tensors and streams."""

    def __init__(self, last="add", result="e, c", outputs=2):
        self.cuda = FakeCuda()
        self.cuda.kernel("tests.add", lambda a, b, out: np.add(a, b, out=out))
        self.cuda.kernel("tests.double", lambda a, out: np.multiply(a, 2, out=out))
        tvm_ffi.register_global_func("tests.synchronize", self.synchronize, override=True)
        self.executable = executable_of(last, result)
        self.signature = Signature((SPEC, SPEC), (SPEC,) * outputs, outputs == 1)
        self.runner = GpuRunner(self.executable, LLVM_DEVICE, self.signature, CudaDriver(self.cuda))
        self.library = Memory(self.cuda)

    def synchronize(self, *_tensors):
        """A kernel that waits for the GPU, which is an error while its stream is being captured."""
        stream = tvm_ffi.get_raw_stream(DEVICE)
        if stream in self.cuda.capturing:
            self.cuda.spoilt.add(stream)
            raise RuntimeError("it waits for the GPU\nand says more of that")

    def __call__(self, inputs, stream=0, **options):
        self.cuda.kept += inputs
        outputs = self.runner(inputs, self.library, stream, **options)
        self.cuda.kept += outputs
        return outputs

    def check(self, inputs, stream=0, **options):
        """Call it, let the GPU run and compare all outputs."""
        outputs = self(inputs, stream, **options)
        self.cuda.run()
        compare(inputs, outputs)

    @property
    def copies(self):
        return self.cuda.calls["cuMemcpyDtoDAsync_v2"]

    @property
    def launches(self):
        return self.cuda.calls["cuGraphLaunch"]


def inputs_of(seed):
    """Two inputs, integers so that sums are exact."""
    rng = np.random.default_rng(seed)
    return [tvm.runtime.tensor(rng.integers(-99, 99, SIZE).astype(np.float32)) for _ in range(2)]


def compare(inputs, outputs):
    for got, want in zip(outputs, expected(*(each.numpy() for each in inputs)), strict=True):
        np.testing.assert_array_equal(got.numpy(), want)


@pytest.fixture
def model():
    model = Model()
    yield model
    assert model.cuda.depth == 0, "a context was left with the thread"
    assert model.cuda.mode == 0, "the thread's capture mode was left changed"


def test_the_first_call_records_and_later_ones_replay(model):
    inputs = inputs_of(0)
    for call in range(4):
        model.check(inputs)
        assert model.launches == call
        assert model.copies == 2 * (call + 1), "one for each output"
    assert model.cuda.calls["cuGraphInstantiateWithFlags"] == 1
    assert len(model.cuda.alive["executable"]) == 1
    assert not model.cuda.alive["graph"] and not model.cuda.alive["stream"]


def test_a_replay_reads_the_inputs_in_place(model):
    inputs = inputs_of(0)
    model.check(inputs)
    for tensor in inputs:
        tensor.copyfrom(np.full(SIZE, 3, np.float32))
    model.check(inputs)
    assert model.launches == 1


def test_inputs_at_many_addresses_are_copied(model):
    sets = [inputs_of(seed) for seed in range(MOST_IN_PLACE + 3)]
    for _ in range(3):
        for inputs in sets:
            model.check(inputs)
    assert len(model.cuda.alive["executable"]) == MOST_IN_PLACE + 1
    before, launches = model.copies, model.launches
    model.check(sets[0])
    assert model.copies - before == 2, "outputs only"
    model.check(sets[-1])
    assert model.copies - before == 2 + 4, "inputs too"
    assert model.launches - launches == 2


def test_the_same_tensor_as_both_inputs(model):
    x, y = inputs_of(0)
    for inputs in ([x, x], [x, y], [x, x], [y, x], [x, y]):
        model.check(inputs)


def test_nothing_holds_the_caller_s_tensors(model):
    """Else torch could not give their memory to the next input, and each call would see other addresses."""

    class Array(np.ndarray):
        pass

    def call():
        arrays = [np.zeros(2 * SIZE, np.float32)[:SIZE].view(Array) for _ in range(2)]
        model([tvm_ffi.from_dlpack(array) for array in arrays])
        model.cuda.run()
        return [weakref.ref(array) for array in arrays]

    held = call()
    gc.collect()
    assert [reference() for reference in held] == [None, None]


def test_outputs_are_the_caller_s_own(model):
    first, second = inputs_of(0), inputs_of(1)
    results = [(inputs, model(inputs)) for inputs in (first, second, first, second, first)]
    model.cuda.run()
    for inputs, outputs in results:
        compare(inputs, outputs)


@pytest.mark.parametrize(("result", "outputs"), [("x", 1), ("x, e", 2), ("e, e", 2)])
def test_an_output_may_be_an_input_or_returned_twice(result, outputs):
    model = Model(result=result, outputs=outputs)
    x, y = inputs_of(0)
    wanted = {"x": x.numpy(), "e": expected(x.numpy(), y.numpy())[0]}
    for call in range(3):
        got = model([x, y])
        model.cuda.run()
        for output, name in zip(got, result.split(", "), strict=True):
            np.testing.assert_array_equal(output.numpy(), wanted[name])
            output.copyfrom(np.full(SIZE, call, np.float32))


def call_from_threads(model, threads=8, streams=3, calls=6):
    """Inputs and outputs of calls from several threads, each on one of several streams, at new and old addresses."""
    handles = [model.cuda.new_stream() for _ in range(streams)]
    results, failures = [], []

    def work(number):
        try:
            for call in range(calls):
                inputs = inputs_of(number % 3 if call % 2 else 100 * number + call)
                results.append((inputs, model(inputs, handles[(number + call) % streams])))
        except BaseException as error:
            failures.append(error)
            raise

    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures
    return results


@pytest.mark.parametrize("cuda_graph", [True, False])
def test_threads_and_streams(cuda_graph):
    """Whatever the order in which the GPU runs the streams."""
    model = Model()
    for seed in range(20):
        model.runner.obstacle = "" if cuda_graph else "off"
        results = call_from_threads(model)
        model.cuda.run(seed)
        for inputs, outputs in results:
            compare(inputs, outputs)


def test_the_emulated_gpu_shows_streams_that_do_not_wait(monkeypatch):
    """Without events the outputs above are wrong."""
    model = Model()
    monkeypatch.setattr(CudaDriver, "wait_event", lambda *_: None)
    results = call_from_threads(model)
    model.cuda.run(1)
    with pytest.raises(AssertionError, match="not equal"):
        for inputs, outputs in results:
            compare(inputs, outputs)


def test_two_models_at_once():
    models = Model(), Model()
    # Kernels go to the GPU of the model that registered them last.
    models[0].cuda = models[0].library.cuda = models[1].cuda
    models[0].runner._driver = models[1].runner._driver
    streams = [models[0].cuda.new_stream() for _ in range(2)]
    calls = [
        (model, inputs_of(seed), stream) for seed in range(3) for model, stream in zip(models, streams, strict=True)
    ]
    results = [(inputs, model(inputs, stream)) for model, inputs, stream in calls]
    models[0].cuda.run(3)
    for inputs, outputs in results:
        compare(inputs, outputs)


def test_a_captured_call_goes_into_the_caller_s_graph(model):
    """Its kernels, in memory of the library that captures, which nothing else writes to."""
    inputs, stream = inputs_of(0), model.cuda.new_stream()
    model.check(inputs)
    own = model.runner._workspace
    before, launches = len(model.library.made), model.launches
    model.cuda.begin_capture(stream)
    outputs = model(inputs, stream)
    work = model.cuda.end_capture(stream)
    assert len(work) == 5, "the kernels and nothing else"
    assert model.launches == launches
    made = model.library.made[before:]
    assert all(each.shape[0] == 4 * SIZE for each in made), "workspace only: outputs lie in it"
    assert not any(own.owns(each) for each in made)
    for seed in range(3):
        for tensor, new in zip(inputs, inputs_of(seed), strict=True):
            tensor.copyfrom(new)
        model(inputs_of(9))
        for each in work:
            model.cuda.enqueue(stream, each)
        model.cuda.run(seed)
        compare(inputs, outputs)


def test_a_captured_call_that_returns_its_input():
    model = Model(result="x", outputs=1)
    inputs, stream = inputs_of(0), model.cuda.new_stream()
    model(inputs)
    model.cuda.begin_capture(stream)
    (output,) = model(inputs, stream)
    assert len(model.cuda.end_capture(stream)) == 5 + 1, "the kernels and a copy"
    assert output.data_ptr() != inputs[0].data_ptr()


def test_what_cannot_be_captured(model):
    inputs, stream = inputs_of(0), model.cuda.new_stream()
    model.cuda.begin_capture(stream)
    with pytest.raises(BuildError, match="model: its first call cannot go into a CUDA graph; call it once before"):
        model(inputs, stream)
    model.check(inputs)
    model.library = Memory(model.cuda, allocates_in_graphs=False)
    with pytest.raises(
        BuildError, match="model: these tensors bring no memory for a CUDA graph; pass torch tensors, or"
    ):
        model(inputs, stream)
    assert model.cuda.end_capture(stream) == []


def test_without_graphs(model):
    inputs = inputs_of(0)
    for _ in range(3):
        model.check(inputs, cuda_graph=False)
    assert not model.launches and not model.cuda.alive["executable"]
    model.check(inputs)
    model.check(inputs)
    assert model.launches == 1


def test_a_model_that_waits_for_the_gpu_is_run_without_a_graph():
    model = Model(last="synchronize", result="c", outputs=1)
    inputs = inputs_of(0)
    for _ in range(3):
        (c,) = model(inputs)
        model.cuda.run()
        np.testing.assert_array_equal(c.numpy(), expected(*(each.numpy() for each in inputs))[1])
    assert model.runner.obstacle == "it waits for the GPU"
    assert model.cuda.calls["cuStreamBeginCapture_v2"] == 1, "it is tried once"
    assert not model.launches and not model.cuda.alive["stream"] and not model.cuda.alive["graph"]


def test_a_compiled_model_warns_once_where_it_has_no_graph():
    model = Model(last="synchronize", result="c", outputs=1)
    compiled = CompiledModel(model.executable, TARGET, model.signature, [])
    compiled._runner = model.runner
    inputs = inputs_of(0)
    message = r"cannot be recorded as a CUDA graph \(it waits for the GPU\), so its kernels are launched one by one"
    with pytest.warns(UserWarning, match=message) as caught:
        c = compiled(*inputs)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = compiled(*inputs)
    model.cuda.run()
    for output in (c, again):
        np.testing.assert_array_equal(output.numpy(), expected(*(each.numpy() for each in inputs))[1])


@pytest.mark.parametrize(("given", "variable", "used"), [(True, None, 1), (False, None, 0), (True, "0", 0)])
def test_graphs_can_be_turned_off(given, variable, used, monkeypatch):
    monkeypatch.delenv("TVM_SPARSE_CUDA_GRAPH", raising=False)
    if variable is not None:
        monkeypatch.setenv("TVM_SPARSE_CUDA_GRAPH", variable)
    model = Model()
    compiled = CompiledModel(model.executable, TARGET, model.signature, [], cuda_graph=given)
    compiled._runner = model.runner
    inputs = inputs_of(0)
    outputs = compiled(*inputs)
    assert len(model.cuda.alive["executable"]) == used
    compiled.cuda_graph = True
    outputs += compiled(*inputs)
    assert model.cuda.alive["executable"]
    model.cuda.run()


def test_out_of_memory_is_a_sentence_and_passes(model, monkeypatch):
    empty, left = tvm.runtime.empty, [2]

    def scarce(shape, dtype="float32", device=None, mem_scope=None):
        if dtype == "uint8":
            left[0] -= 1
            if left[0] < 0:
                raise RuntimeError("CUDA Runtime Error: cudaErrorMemoryAllocation (2): out of memory")
        model.cuda.kept.append(empty(shape, dtype, device, mem_scope))
        return model.cuda.kept[-1]

    monkeypatch.setattr(gpu_runner.tvm.runtime, "empty", scarce)
    inputs = inputs_of(0)
    with pytest.raises(BuildError) as raised:
        model(inputs)
    sentence = "GPU: it is out of memory (cudaErrorMemoryAllocation); free memory there, or compile the model for a "
    assert str(raised.value) == f"{sentence}smaller batch"
    assert model.runner._workspace.size_bytes == 0, "what it had is given back"
    left[0] = 100
    model.check(inputs)
    model.check(inputs)
    assert model.launches == 1


def test_memory_that_torch_keeps_is_asked_for(model, monkeypatch):
    import torch

    empty, kept = tvm.runtime.empty, [True]

    def scarce(shape, dtype="float32", device=None, mem_scope=None):
        if dtype == "uint8" and kept:
            raise RuntimeError("CUDA Runtime Error: cudaErrorMemoryAllocation (2): out of memory")
        model.cuda.kept.append(empty(shape, dtype, device, mem_scope))
        return model.cuda.kept[-1]

    monkeypatch.setattr(gpu_runner.tvm.runtime, "empty", scarce)
    monkeypatch.setattr(torch.cuda, "empty_cache", kept.clear)
    model.check(inputs_of(0))


@pytest.mark.parametrize("name", ["cuGraphLaunch", "cuMemcpyDtoDAsync_v2", "cuEventRecord"])
def test_a_lost_gpu_is_a_sentence(model, name):
    inputs = inputs_of(0)
    model.check(inputs)
    workspace = weakref.ref(model.runner._workspace)
    model.cuda.codes[name] = 700
    with pytest.raises(BuildError, match=r"GPU: it is lost to this process \(CUDA_ERROR_ILLEGAL_ADDRESS\); start"):
        model(inputs)
    model.runner = None
    gc.collect()
    assert workspace() is not None, "TVM would end the process where it freed this"


def test_other_failures_are_left_as_they_are(model):
    model.cuda.codes["cuCtxPushCurrent_v2"] = 400
    with pytest.raises(RuntimeError, match=r"^cuCtxPushCurrent_v2: CUDA_ERROR_INVALID_HANDLE$"):
        model(inputs_of(0))


def test_a_model_that_is_no_more_leaves_nothing(model):
    """It waits for its graphs first."""
    inputs = inputs_of(0)
    model(inputs)
    outputs = model(inputs)
    workspace = weakref.ref(model.runner._workspace)
    model.runner = None
    compare(inputs, outputs)
    assert workspace() is None
    assert not any(model.cuda.alive.values())


def test_memory_is_planned_once():
    """As much as is needed at a time, and no more later."""
    made = []

    def allocate(size_bytes):
        made.append(tvm.runtime.empty((size_bytes,), "uint8"))
        return made[-1]

    model = Model()
    model(inputs_of(0))
    workspace, machine = Workspace(allocate), model.runner._machine
    sets = [inputs_of(seed) for seed in range(5)]
    addresses = {tuple(each.data_ptr() for each in machine.run(inputs, workspace)) for inputs in sets}
    model.cuda.run()
    assert len(addresses) == 1
    # Of five arrays, three are needed at a time: c, d and e.
    assert [each.numel() for each in made] == [4 * SIZE] * 3
    assert workspace.size_bytes == 3 * 4 * SIZE


def test_other_machines_keep_tvm_s_memory(model):
    """TVM's own functions are in place again once a model has been made, and serve everyone else."""
    from tvm import relax

    model(inputs_of(0))
    machine = relax.VirtualMachine(model.executable, LLVM_DEVICE)
    inputs = inputs_of(1)
    first = machine["main"](*inputs)
    second = machine["main"](*inputs)
    model.cuda.run()
    for outputs in (first, second):
        compare(inputs, outputs)
    assert first[0].data_ptr() != second[0].data_ptr()


def test_a_call_in_the_middle_of_a_call_is_refused_and_the_next_one_is_not():
    model, inputs = Model(), inputs_of(0)
    empty, found = model.library.empty, []

    def empty_and_call(*arguments):
        if not found:
            found.append(None)
            with pytest.raises(BuildError, match="in the middle of a call"):
                model(inputs)
        return empty(*arguments)

    model.library.empty = empty_and_call
    model.check(inputs)
    assert found
    model.check(inputs)


def test_a_child_is_told_that_cuda_does_not_survive_a_fork(monkeypatch):
    model = Model()
    model.check(inputs_of(0))
    model.runner.require_own_process()
    monkeypatch.setattr(gpu_runner.os, "getpid", lambda: -1)
    with pytest.raises(BuildError, match="before a fork, which CUDA does not survive"):
        model.runner.require_own_process()


def test_a_child_keeps_the_memory_that_it_cannot_free():
    model = Model()
    model.check(inputs_of(0))
    kept = weakref.ref(model.runner)
    gpu_failures._keep_all()
    del model
    gc.collect()
    assert kept() is not None
