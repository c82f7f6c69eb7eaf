"""What docs/deployment.md promises of threads, forks and signals, of models as a server has them."""

import asyncio
import multiprocessing
import os
import signal
import threading
import time

import numpy as np
import psutil
import pytest
import tvm
import tvm.script

from tvm_sparse.runtime.compiled_model import CompiledModel
from tvm_sparse.runtime.signature import Signature, TensorSpec
from tvm_sparse.target.cpu import available_cores

DOUBLE = """
@I.ir_module
class Module:
    @T.prim_func
    def double(x: T.Buffer((SIZE,), "float32"), y: T.Buffer((SIZE,), "float32")):
        for i in T.parallel(SIZE):
            y[i] = x[i] * T.float32(2)

    @R.function
    def main(x: R.Tensor((SIZE,), "float32")) -> R.Tensor((SIZE,), "float32"):
        cls = Module
        with R.dataflow():
            y = R.call_tir(cls.double, (x,), out_ty=R.Tensor((SIZE,), "float32"))
            R.output(y)
        return y
"""
CHILD_S = 60


def make(size):
    spec = TensorSpec("x", (size,), "float32")
    target = tvm.target.Target({"kind": "llvm", "num-cores": available_cores()})
    executable = tvm.compile(tvm.script.from_source(DOUBLE.replace("SIZE", str(size))), target)
    model, x = CompiledModel(executable, target, Signature((spec,), (spec,), True), []), np.ones(size, np.float32)

    def call():
        assert np.array_equal(model(x), x * 2)

    return call


@pytest.fixture(scope="module")
def call():
    """Calls a model, which was called before, and looks at the result."""
    made = make(1000)
    made()
    return made


def in_child(body):
    """The exit code of a child that runs `body`."""
    child = os.fork()
    if not child:
        code = 1
        try:
            body()
            code = 0
        finally:
            os._exit(code)
    limit = threading.Timer(CHILD_S, os.kill, (child, signal.SIGKILL))
    limit.start()
    try:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    finally:
        limit.cancel()


def run_threads(bodies):
    threads = [threading.Thread(target=body) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("count", [200, pytest.param(10_000, marks=pytest.mark.conformance)])
def test_threads_that_call_once_leave_nothing_behind(call, count):
    process = psutil.Process()
    run_threads([call])
    threads, memory = process.num_threads(), process.memory_info().rss
    for _ in range(count):
        run_threads([call])
    # The last caller may be on its way out.
    end = time.monotonic() + 10
    while process.num_threads() > threads and time.monotonic() < end:
        time.sleep(0.01)
    assert process.num_threads() <= threads
    assert process.memory_info().rss - memory < 2**20


@pytest.mark.parametrize("count", [5, pytest.param(1000, marks=pytest.mark.conformance)])
def test_a_child_calls(call, count):
    for _ in range(count):
        assert in_child(call) == 0
        call()


def test_children_of_children_and_threads_in_children_call(call):
    def nested():
        assert in_child(call) == 0

    assert in_child(nested) == 0
    assert in_child(lambda: run_threads([call] * 4)) == 0


def test_a_child_ends_as_python_does(call):
    """At exit TVM would wait for threads that the child does not have, where the one that forked had a pool."""
    time.sleep(0.01)
    process = multiprocessing.get_context("fork").Process(target=call)
    process.start()
    process.join(CHILD_S)
    assert process.exitcode == 0


def test_children_of_threads_call_while_others_call(call):
    stop, codes = threading.Event(), []

    def work():
        while not stop.is_set():
            call()

    def fork():
        codes.extend(in_child(call) for _ in range(3))

    busy = [threading.Thread(target=work) for _ in range(3)]
    for thread in busy:
        thread.start()
    run_threads([fork] * 2)
    stop.set()
    for thread in busy:
        thread.join()
    assert codes == [0] * 6


@pytest.mark.parametrize("action", ["call", "fork"])
def test_a_handler_may_call_the_model_that_it_interrupts(call, action):
    done, inside, ended = [], [], threading.Event()

    def handler(*_):
        if not inside:
            inside.append(1)
            done.append(in_child(call) if action == "fork" else call())
            inside.clear()

    def send():
        for _ in range(20):
            os.kill(os.getpid(), signal.SIGUSR1)
            time.sleep(0.01)
        ended.set()

    before = signal.signal(signal.SIGUSR1, handler)
    sender = threading.Thread(target=send)
    try:
        sender.start()
        while not ended.is_set():
            call()
    finally:
        sender.join()
        signal.signal(signal.SIGUSR1, before)
    assert done and set(done) == {0 if action == "fork" else None}


def test_an_executor_of_asyncio_calls(call):
    async def work():
        loop = asyncio.get_running_loop()
        await asyncio.gather(*(loop.run_in_executor(None, call) for _ in range(50)))

    asyncio.run(work())


def calls_of_threads(calls, count, seconds):
    """How often each of `count` threads calls, thread i one of `calls`."""
    made, end = [0] * count, time.monotonic() + seconds

    def work(number):
        while time.monotonic() < end:
            calls[number % len(calls)]()
            made[number] += 1

    run_threads([lambda number=number: work(number) for number in range(count)])
    return made


@pytest.mark.parametrize("sizes", [(1000,), (1000, 100_000, 1_000_000)], ids=["one model", "three models"])
@pytest.mark.parametrize("seconds", [0.5, pytest.param(30, marks=pytest.mark.conformance)])
def test_sixteen_threads_get_equal_shares(sizes, seconds):
    calls = [make(size) for size in sizes]
    made = calls_of_threads(calls, 16, seconds)
    for model in range(len(calls)):
        of_model = made[model :: len(calls)]
        assert min(of_model) >= sum(of_model) / len(of_model) / 4, made
