"""Calls on a real GPU: graphs, streams, captures by torch, threads, memory and failures.

    python -m pytest -m gpu tests/runtime

Results are compared bit for bit with those of kernels launched one by one, whose own correctness the first test shows.
"""

import gc
import signal
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import tvm
import tvm.script
import tvm_ffi
from torch import nn

from tvm_sparse.compiler import build_model, build_plan
from tvm_sparse.compiler.layouts.plan_scratch import plan_scratch, scratch_of
from tvm_sparse.compiler.rewriting.replace_convolutions import replace_convolutions
from tvm_sparse.compiler.signature_of import signature_of
from tvm_sparse.errors import BuildError
from tvm_sparse.frontend.prepare import prepare
from tvm_sparse.runtime.artifact import load
from tvm_sparse.runtime.compiled_model import CompiledModel
from tvm_sparse.runtime.gpu.gpu_runner import MOST_IN_PLACE
from tvm_sparse.runtime.signature import Signature, TensorSpec
from tvm_sparse.schedules.lookup import make_kernel
from tvm_sparse.target.resolve import resolve_target

pytestmark = pytest.mark.gpu
SHAPE = (8, 32, 56, 56)


class Net(nn.Module):
    """Six sparse convolutions, 1 ms together, of which two outputs are returned."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Conv2d(32, 32, 3, padding=1) for _ in range(6))
        with torch.no_grad():
            for layer in self.layers:
                layer.weight *= torch.rand(layer.weight.shape) < 0.1

    def forward(self, x):
        for layer in self.layers:
            middle, x = x, torch.relu(layer(x))
        return x, middle


@pytest.fixture(scope="module")
def parts():
    """Executable, target and signature of `Net`, by kernels with padded inputs of their own."""
    target = resolve_target("cuda")
    prepared = prepare(Net().eval(), torch.zeros(SHAPE))
    kernels = {layer.name: make_kernel("csr_cuda", layer.spec, layer.weight, target) for layer in prepared.layers}
    assert all(scratch_of(kernel.func) for kernel in kernels.values())
    module = plan_scratch(replace_convolutions(prepared.mod, kernels))
    return build_plan.compiled_module(module, target), target, signature_of(prepared)


def new_model(parts, **options):
    return CompiledModel(*parts, [], **options)


@pytest.fixture(scope="module")
def model(parts):
    return new_model(parts)


@pytest.fixture(scope="module")
def plain(parts):
    """The same model without graphs."""
    return new_model(parts, cuda_graph=False)


def tensor(seed):
    generator = torch.Generator(device="cuda").manual_seed(seed)
    return torch.randn(SHAPE, device="cuda", generator=generator)


def wanted(plain, x):
    """Outputs of a single call, all done."""
    outputs = [output.clone() for output in plain(x)]
    torch.cuda.synchronize()
    return outputs


def compare(got, want, what=""):
    for index, (output, good) in enumerate(zip(got, want, strict=True)):
        wrong = int((output != good).sum())
        assert not wrong, f"{what} output {index}: {wrong} of {good.numel()} elements differ"


def free_bytes():
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info()[0]


def executables(model):
    return len(model._runner._recordings)


def test_kernels_launched_one_by_one_are_right(plain):
    x = tensor(0)
    with torch.no_grad():
        want = [output.numpy() for output in Net().eval()(x.cpu())]
    for got, good in zip(plain(x), want, strict=True):
        np.testing.assert_allclose(got.cpu(), good, rtol=1e-4, atol=1e-4)
    assert not executables(plain)


def test_a_replay_gives_the_same_bits(parts, plain):
    model, x = new_model(parts), tensor(1)
    want = wanted(plain, x)
    for call in range(5):
        compare(model(x), want, f"call {call}")
    assert executables(model) == 1 and not model._runner.obstacle
    # The same address, other numbers.
    x.copy_(tensor(2))
    compare(model(x), wanted(plain, x), "new numbers in the same tensor")
    assert executables(model) == 1


def test_pointers_that_change_with_each_call(parts, plain):
    model = new_model(parts)
    inputs = [tensor(seed) for seed in range(2 * MOST_IN_PLACE)]
    want = [wanted(plain, x) for x in inputs]
    for turn in range(3):
        results = [model(x) for x in inputs]
        for seed, (outputs, good) in enumerate(zip(results, want, strict=True)):
            compare(outputs, good, f"turn {turn}, input {seed}")
    assert executables(model) == MOST_IN_PLACE + 1


def test_new_tensors_in_a_loop_are_mostly_read_in_place(parts, plain):
    """As nothing of ours holds them, torch returns the same few addresses."""
    model = new_model(parts)
    for seed in range(20):
        x = tensor(seed)
        got = model(x)
        compare(got, wanted(plain, x), f"input {seed}")
        del x, got
    assert executables(model) <= MOST_IN_PLACE


def test_tvm_s_tensors(model, plain):
    x = tensor(3)
    want = wanted(plain, x)
    placed = tvm.runtime.tensor(x.cpu().numpy(), tvm.cuda(0))
    for call in range(3):
        outputs = model(placed)
        assert all(isinstance(output, tvm.runtime.Tensor) for output in outputs)
        compare([torch.from_numpy(output.numpy()).cuda() for output in outputs], want, f"call {call}")


def test_the_current_stream_is_respected_by_replays(model, plain):
    """The input is written on a stream of its own, after a long wait; each call must run behind that."""
    placed, source = torch.zeros(SHAPE, device="cuda"), tensor(4)
    want, stream = wanted(plain, source), torch.cuda.Stream()
    model(placed)
    for call in range(3):
        placed.zero_()
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(100_000_000)
            placed.copy_(source)
            outputs = model(placed)
        stream.synchronize()
        compare(outputs, want, f"call {call}")


def captured(model, x):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = model(x)
    return graph, outputs


@pytest.mark.parametrize("cuda_graph", [True, False])
def test_torch_captures_calls(parts, plain, cuda_graph):
    model, x = new_model(parts, cuda_graph=cuda_graph), tensor(5)
    model(x)
    torch.cuda.synchronize()
    graph, outputs = captured(model, x)
    for seed in range(6, 12):
        source = tensor(seed)
        x.copy_(source)
        graph.replay()
        compare(outputs, wanted(plain, source), f"replay with input {seed}")
        compare(model(source), wanted(plain, source), f"call with input {seed}")


def test_a_captured_call_beside_others(model, plain):
    """Captured graphs have memory of their own: replays on one stream do not disturb calls on another."""
    x, other = tensor(12), tensor(13)
    want, want_other = wanted(plain, x), wanted(plain, other)
    model(x)
    torch.cuda.synchronize()
    graphs = [captured(model, x) for _ in range(2)]
    streams = [torch.cuda.Stream() for _ in range(3)]
    torch.cuda.synchronize()
    for turn in range(100):
        for stream, (graph, _) in zip(streams, graphs, strict=False):
            with torch.cuda.stream(stream):
                graph.replay()
        with torch.cuda.stream(streams[2]):
            outputs = model(other)
        torch.cuda.synchronize()
        for number, (_, results) in enumerate(graphs):
            compare(results, want, f"turn {turn}, graph {number}")
        compare(outputs, want_other, f"turn {turn}, call")


@pytest.mark.whole_gpu
def test_what_torch_captured_is_freed_with_its_graph(model):
    x = tensor(14)
    model(x)
    held = [captured(model, x)]
    del held[:]
    before = free_bytes()
    for _ in range(20):
        held.append(captured(model, x))
        del held[:]
    assert before - free_bytes() < 2**20


def test_a_first_call_cannot_be_captured(parts, plain):
    model, x = new_model(parts), tensor(15)
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(BuildError, match="its first call cannot go into a CUDA graph"), torch.cuda.graph(graph):
        model(x)
    torch.cuda.synchronize()
    compare(model(x), wanted(plain, x))


def test_a_first_call_while_another_thread_captures(parts, plain):
    """torch captures so that no thread may allocate; neither may the capture be spoilt, nor the call fail."""
    capturing, other = new_model(parts), new_model(parts)
    x, y = tensor(16), tensor(17)
    want, want_other = wanted(plain, x), wanted(plain, y)
    capturing(x)
    torch.cuda.synchronize()
    results, failures, stream = [], [], torch.cuda.Stream()

    def work():
        try:
            with torch.cuda.stream(stream):
                results.extend(other(y) for _ in range(3))
        except BaseException as error:
            failures.append(error)

    thread, graph = threading.Thread(target=work), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = capturing(x)
        thread.start()
        thread.join()
    assert not failures, failures
    graph.replay()
    torch.cuda.synchronize()
    compare(outputs, want, "captured")
    for call, each in enumerate(results):
        compare(each, want_other, f"call {call}")


def call_from_threads(models, plain, threads=8, streams=3, calls=25):
    """Every call's outputs are those of a single call; each thread goes from stream to stream."""
    inputs = [tensor(seed) for seed in range(threads)]
    want = [wanted(plain, x) for x in inputs]
    handles = [torch.cuda.Stream() for _ in range(streams)]
    torch.cuda.synchronize()
    results, failures = [], []

    def work(number):
        try:
            for call in range(calls):
                with torch.cuda.stream(handles[(number + call) % streams]):
                    # Sometimes at a new address.
                    x = inputs[number] if call % 3 else inputs[number].clone()
                    results.append((number, call, models[number % len(models)](x)))
        except BaseException as error:
            failures.append(error)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    # The clones are freed while their streams are at work; torch gives them to the same stream only.
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    torch.cuda.synchronize()
    assert not failures, failures
    assert len(results) == threads * calls
    for number, call, outputs in results:
        compare(outputs, want[number], f"thread {number}, call {call}")


@pytest.mark.parametrize("cuda_graph", [True, False])
def test_eight_threads_on_three_streams(parts, plain, cuda_graph):
    call_from_threads([new_model(parts, cuda_graph=cuda_graph)], plain)


def test_two_models_at_once(parts, plain):
    call_from_threads([new_model(parts), new_model(parts)], plain)


@pytest.mark.skipif(not tvm.cuda(1).exist, reason="needs two GPUs")
def test_a_module_on_the_second_gpu_runs_there(tmp_path):
    x, module = torch.randn(SHAPE, device="cuda:1"), Net().eval().to("cuda:1")
    fast = build_model.compile(module, x)
    with torch.no_grad():
        wanted = module(x)
    for model in (fast, load(fast.save(tmp_path / "net.sparse"), device="cuda:1")):
        # Launched one by one, recorded, and from the graph.
        for _ in range(3):
            found = model(x)
            assert {each.device for each in found} == {x.device}
            for ours, theirs in zip(found, wanted, strict=True):
                torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)


@pytest.fixture(scope="module")
def small():
    """A model of a few microseconds."""
    module = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU()).eval()
    return build_model.compile(module, torch.zeros(1, 4, 9, 9), target="cuda")


@pytest.mark.whole_gpu
@pytest.mark.parametrize("kind", ["torch", "fresh", "tvm"])
def test_100_000_calls_leave_no_memory_behind(small, kind):
    """`fresh` are new tensors in each call, of which some stay alive for a while."""
    x = torch.zeros(1, 4, 9, 9, device="cuda")
    placed = tvm.runtime.tensor(np.zeros(x.shape, np.float32), tvm.cuda(0))
    kept = []

    def calls(count):
        for call in range(count):
            if kind == "fresh":
                kept.append(x.clone())
                small(kept[-1])
                del kept[: -1 - call % 7]
            else:
                small(x if kind == "torch" else placed)
        kept.clear()

    calls(2_000)
    before = free_bytes()
    calls(100_000)
    grown = before - free_bytes()
    assert grown <= 0, f"{grown} bytes less are free"


@pytest.mark.whole_gpu
def test_a_model_that_is_no_more_leaves_nothing(parts):
    def use():
        model = new_model(parts)
        for seed in range(MOST_IN_PLACE + 2):
            model(tensor(seed))

    use()
    before = free_bytes()
    for _ in range(10):
        use()
    # Constants go back to TVM's own pool, from which the next model takes them.
    assert before - free_bytes() < 2**20


def hold_all_memory():
    """Nearly all of the GPU's memory, in torch's hands."""
    held, size = [], 1 << 34
    # torch takes 20 MB at a time from CUDA for tensors of 1 MB and more, 2 MB for smaller ones.
    while size >= 1 << 19:
        try:
            held.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError:
            size //= 2
    return held


@pytest.mark.whole_gpu
@pytest.mark.parametrize("kind", ["torch", "tvm"])
def test_out_of_memory_is_a_sentence(parts, plain, kind):
    """`tvm`: where TVM meets it, not torch."""
    model, x = new_model(parts), tensor(18)
    want = wanted(plain, x)
    placed = x if kind == "torch" else tvm.runtime.tensor(x.cpu().numpy(), tvm.cuda(0))
    torch.cuda.empty_cache()
    held = hold_all_memory()
    with pytest.raises(BuildError, match=r"GPU: it is out of memory \(\w.*\); free memory there") as raised:
        model(placed)
    assert "\n" not in str(raised.value)
    del held
    torch.cuda.empty_cache()
    # torch asks CUDA for the last error after each launch: ours must not be left there.
    assert float((x - x).abs().max()) == 0
    for call in range(3):
        compare(model(x), want, f"call {call} after memory was freed")


@pytest.mark.whole_gpu
def test_memory_that_torch_keeps_for_itself_is_used(parts, plain):
    model, x = new_model(parts), tensor(19)
    want = wanted(plain, x)
    try:
        hold_all_memory().clear()
        # Less than the workspace.
        assert torch.cuda.mem_get_info()[0] < 8 * 2**20
        compare(model(x), want)
    finally:
        # Other processes have none until it is given back.
        torch.cuda.empty_cache()


LOST = """
import sys, torch
sys.path[:0] = sys.argv[1:]
from torch import nn
from tvm_sparse.compiler import build_model, build_plan
from tvm_sparse.errors import BuildError
model = build_model.compile(nn.Conv2d(4, 4, 3).eval(), torch.zeros(1, 4, 9, 9), target="cuda")
x = torch.zeros(1, 4, 9, 9, device="cuda")
y = model(x), model(x)
torch.cuda.synchronize()
torch.zeros(4, device="cuda")[torch.full((1,), 10**6, device="cuda")]
for call in range(3):
    try:
        for _ in range(1000):
            model(x)
    except BuildError as error:
        print(error)
    else:
        print("no error")
del model
print("end")
"""


def test_a_lost_gpu_is_a_sentence():
    """In a process of its own, which goes on and ends as usual."""
    command = [sys.executable, "-c", LOST, str(Path(__file__).parents[2])]
    run = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    lines = run.stdout.splitlines()
    assert len(lines) == 4 and lines[3] == "end", run.stdout + run.stderr
    assert all(line.startswith("GPU: it is lost to this process (") for line in lines[:3]), run.stdout
    assert run.returncode == 0 and "terminate called" not in run.stderr, run.stderr


WAITING = """
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor((64,), "float32")) -> R.Tensor((64,), "float32"):
        with R.dataflow():
            a = R.add(x, x)
            b = R.call_dps_packed("tests.wait", (a,), out_ty=R.Tensor((64,), "float32"))
            c = R.add(b, x)
            R.output(c)
        return c
"""


def test_a_model_that_waits_for_the_gpu_is_run_without_a_graph():
    def wait(source, target):
        stream = torch.cuda.ExternalStream(tvm_ffi.get_raw_stream(tvm_ffi.device("cuda", 0)))
        with torch.cuda.stream(stream):
            torch.from_dlpack(target).copy_(torch.from_dlpack(source))
        stream.synchronize()

    tvm_ffi.register_global_func("tests.wait", wait, override=True)
    target = resolve_target("cuda")
    executable = build_plan.compiled_module(tvm.script.from_source(WAITING), target)
    spec = TensorSpec("x", (64,), "float32")
    model = CompiledModel(executable, target, Signature((spec,), (spec,), True), [])
    x = torch.arange(64, dtype=torch.float32, device="cuda")
    with pytest.warns(UserWarning, match=r"the model cannot be recorded as a CUDA graph \(.+\), so its kernels"):
        y = model(x)
    assert torch.equal(y, 3 * x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(model(x), 3 * x)
    assert not executables(model)


def test_a_thread_that_never_used_the_gpu_may_call(model, plain):
    """It has no context of its own yet, or another GPU's."""
    x = tensor(20)
    want, results = wanted(plain, x), []
    thread = threading.Thread(target=lambda: results.append(model(x)))
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    compare(results[0], want)


def interrupted(work, handler):
    """Do `work` again and again until the signal that is sent meanwhile has been handled by `handler`."""
    handled = []
    former = signal.signal(signal.SIGALRM, lambda *_: handled.append(handler()))
    signal.setitimer(signal.ITIMER_REAL, 0.002)
    try:
        while not handled:
            work()
    finally:
        signal.signal(signal.SIGALRM, former)
    return handled[0]


def test_a_handler_that_calls_the_model_it_interrupted_is_told(model, plain):
    x = tensor(21)
    want = wanted(plain, x)

    def call():
        try:
            return model(x)
        except BuildError as error:
            return str(error)

    found = [interrupted(call, call) for _ in range(200)]
    told = [each for each in found if isinstance(each, str)]
    # Those that came between two calls are right.
    for outputs in found:
        if not isinstance(outputs, str):
            compare(outputs, want)
    assert told and all("in the middle of a call" in each for each in told), set(map(str, told))
    compare(model(x), want)


FORKED = """
import os, sys, torch, tvm
sys.path[:0] = sys.argv[1:]
from torch import nn
from tvm_sparse.compiler import build_model, build_plan
from tvm_sparse.errors import BuildError
model = build_model.compile(nn.Conv2d(4, 4, 3).eval(), torch.zeros(1, 4, 9, 9), target="cuda")
x = torch.randn(1, 4, 9, 9, device="cuda")
want = [model(x) for _ in range(3)][-1].clone()
torch.cuda.synchronize()
others = torch.from_dlpack(x), tvm.runtime.tensor(x.cpu().numpy(), tvm.cuda(0))
for turn in range(20):
    child = os.fork()
    if not child:
        said = 0
        for given in (x, *others):
            try:
                model(given)
            except BuildError as error:
                said += "before a fork" in str(error)
        os._exit(said)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    assert torch.equal(model(x), want)
print("end")
"""


def test_a_call_in_a_forked_child_is_told():
    """The parent goes on as if there were no child."""
    command = [sys.executable, "-c", FORKED, str(Path(__file__).parents[2])]
    run = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    assert (run.returncode, run.stdout) == (0, "end\n"), run.stdout + run.stderr
