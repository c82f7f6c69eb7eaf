"""Faults that reach beyond their candidate if nobody stops them: memory, floods, nonsense, poisoned processes.

`test_measurer` has those that end with their process. Here too the next candidate is measured and the cause is kept, up
to the record in the log and the summary on the screen.
"""

import json
import os
import re
import shutil
import sys
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import tvm
from tvm.support import nvcc

from tvm_sparse.autotune import session
from tvm_sparse.autotune.options import TuneOptions
from tvm_sparse.autotune.progress.live_progress import LiveProgress
from tvm_sparse.codegen import lowering
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.display.consoles import progress_console
from tvm_sparse.errors import BuildError
from tvm_sparse.logs.tuning_log import TuningLog
from tvm_sparse.measure import device_lock, memory
from tvm_sparse.measure.measurer import Measurer
from tvm_sparse.measure.outcome import Candidate, MeasureOptions
from tvm_sparse.measure.worker import Worker
from tvm_sparse.schedules.lookup import make_kernel
from tvm_sparse.target.gpu_driver import gpu_property
from tvm_sparse.target.resolve import resolve_target

TARGET = resolve_target('{"kind":"llvm","num-cores":1}')
SPEC = ConvSpec(1, 8, 12, 12, 8, 3, 3, padding=(1, 1, 1, 1))
WEIGHT = np.where(np.random.default_rng(0).random(SPEC.weight_shape) < 0.2, 1.5, 0).astype(np.float32)
FAULTY = str(Path(__file__).parents[1] / "support" / "faulty_worker.py")
LIMIT_BYTES = 400 << 20
OPTIONS = MeasureOptions(
    repeats=3, min_repeat_ms=0.1, build_timeout_s=180, run_timeout_s=180, memory_bytes=LIMIT_BYTES, builders=1
)


@pytest.fixture
def faulty(monkeypatch):
    """Candidates do what their schedule's name says; a worker may take 400 MiB."""
    monkeypatch.setattr(Worker, "command", (sys.executable, FAULTY))
    with Measurer(SPEC, WEIGHT, TARGET, OPTIONS) as measurer:
        yield measurer


@pytest.mark.parametrize("step", ["build", "run"])
@pytest.mark.parametrize(
    ("how", "cause"),
    [
        ("allocates 10 GB", "the worker process took more than 0.391 GiB of memory"),
        ("lets a compiler allocate 10 GB", "the worker process took more than 0.391 GiB of memory"),
        ("answers nonsense", "the worker process wrote nonsense: b'nonsense"),
        ("answers a number", "the worker process wrote nonsense: b'3"),
        ("answers without end", "the worker process wrote nonsense: b'xxx"),
        ("closes its pipes", "the worker process closed its pipes"),
    ],
)
def test_a_fault_costs_only_its_candidate(faulty, step, how, cause):
    start_s = time.monotonic()
    bad, good = faulty.measure([Candidate(f"{step} {how}"), Candidate("good")])
    assert (bad.status, bad.times_us) == (f"{step}_failed", ())
    assert re.search(cause, bad.cause), bad.cause
    assert (good.status, good.cause, good.times_us) == ("ok", "", (10.0, 10.0, 10.0))
    assert time.monotonic() - start_s < 120


def test_half_an_answer_is_waited_for_no_longer_than_a_whole_one(monkeypatch):
    monkeypatch.setattr(Worker, "command", (sys.executable, FAULTY))
    with Measurer(SPEC, WEIGHT, TARGET, MeasureOptions(repeats=1, run_timeout_s=4, builders=1)) as measurer:
        bad, good = measurer.measure([Candidate("run answers half"), Candidate("good")])
    assert (bad.status, bad.cause, good.status) == ("timeout", "run took longer than 4 s", "ok")


def test_a_flood_of_output_fills_nothing(faulty):
    before = psutil.Process().memory_info().rss
    outcomes = list(faulty.measure([Candidate("build floods"), Candidate("run floods")]))
    assert [outcome.status for outcome in outcomes] == ["ok", "ok"]
    assert psutil.Process().memory_info().rss - before < 100 << 20
    assert sum(path.stat().st_size for path in Path(faulty._folder.name).rglob("*") if path.is_file()) < 1 << 20


@pytest.mark.parametrize("how", ["poisons the process", "is wrong"])
def test_what_a_candidate_leaves_in_its_process_goes_with_it(faulty, how):
    """A CUDA context stays unusable after an illegal access; a wrong kernel may have written anywhere."""
    bad, good = faulty.measure([Candidate(f"run {how}"), Candidate("good")])
    assert bad.status == {"poisons the process": "run_failed", "is wrong": "wrong"}[how]
    assert (good.status, good.cause) == ("ok", "")


def test_memory_of_a_long_lived_worker_is_not_held_against_a_candidate(monkeypatch):
    monkeypatch.setattr(Worker, "command", (sys.executable, FAULTY))
    with Measurer(SPEC, WEIGHT, TARGET, MeasureOptions(repeats=1, builders=1)) as measurer:
        list(measurer.measure([Candidate("good")]))
        worker, first = measurer._runner, measurer._runner._channel.pid
        measurer._memory_bytes = 4 * worker._channel.memory_bytes()
        list(measurer.measure([Candidate("good")]))
        assert worker._channel.pid == first
        measurer._memory_bytes = 1.5 * worker._channel.memory_bytes()
        assert [outcome.status for outcome in measurer.measure([Candidate("good")])] == ["ok"]
        assert worker._channel.pid != first


def test_used_memory_counts_children():
    child = psutil.Popen([sys.executable, "-c", "x = b'x' * (300 << 20); print(len(x), flush=True); input()"], **PIPES)
    child.stdout.readline()
    assert 300 << 20 < memory.used_bytes(child.pid) < 400 << 20
    assert memory.used_bytes(os.getpid()) > memory.used_bytes(child.pid)
    child.communicate(b"\n")
    assert memory.used_bytes(child.pid) == 0
    assert 1 << 28 < memory.total_bytes() <= psutil.virtual_memory().total


PIPES = {"stdin": -1, "stdout": -1}


def make_failing(compiler, folder, monkeypatch):
    """Put a compiler on PATH that rejects everything while the file that is returned exists."""
    real, broken, path = shutil.which(compiler), folder / "broken", folder / compiler
    complaint = "kernel.cu(7): error: too many registers"
    path.write_text(
        f'#!/bin/sh\nif [ -e "{broken}" ] && [ "$1" != --version ]; then echo "{complaint}" >&2; exit 2; fi\n'
        f'exec {real} "$@"\n'
    )
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    broken.touch()
    return broken


def test_what_a_c_compiler_says_is_kept(tmp_path, monkeypatch):
    """The linker of real CPU kernels; with it every real build fails, without it the same candidate is measured."""
    broken = make_failing("g++", tmp_path, monkeypatch)
    monkeypatch.setenv("CXX", str(tmp_path / "g++"))
    with Measurer(SPEC, WEIGHT, TARGET, MeasureOptions(repeats=1, min_repeat_ms=0.1, builders=1)) as measurer:
        (bad,) = measurer.measure([Candidate("folded_cpu")])
        broken.unlink()
        (good,) = measurer.measure([Candidate("folded_cpu")])
    assert bad.status == "build_failed"
    assert "error: too many registers" in bad.cause
    assert (good.status, good.cause) == ("ok", "")


def test_what_nvcc_says_is_kept(tmp_path, monkeypatch):
    """Without a GPU TVM leaves CUDA code uncompiled, so here its own call of nvcc stands for the whole of it."""
    make_failing("nvcc", tmp_path, monkeypatch)
    target = resolve_target({"kind": "cuda", "arch": "sm_90"})
    monkeypatch.setenv("TVM_CUDA_COMPILE_MODE", "nvcc")
    monkeypatch.setattr(tvm, "compile", lambda *_, **__: nvcc.tvm_callback_cuda_compile("__global__ void f() {}"))
    kernel = make_kernel("folded_cuda", SPEC, WEIGHT, target)
    with pytest.raises(BuildError, match=r"the compiler rejects it: .*kernel.cu\(7\): error: too many registers"):
        lowering.build(kernel.func, target)


@pytest.mark.gpu
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc, which TVM is told to use")
def test_a_candidate_that_nvcc_rejects_costs_only_itself(tmp_path, monkeypatch):
    broken = make_failing("nvcc", tmp_path, monkeypatch)
    monkeypatch.setenv("TVM_CUDA_COMPILE_MODE", "nvcc")
    target = resolve_target("cuda")
    with Measurer(SPEC, WEIGHT, target, MeasureOptions(repeats=1, min_repeat_ms=0.1, builders=1)) as measurer:
        (bad,) = measurer.measure([Candidate("folded_cuda")])
        broken.unlink()
        (good,) = measurer.measure([Candidate("folded_cuda")])
    assert bad.status == "build_failed"
    assert "error: too many registers" in bad.cause
    assert (good.status, good.cause) == ("ok", "")


@pytest.mark.gpu
def test_a_poisoned_gpu_costs_only_its_candidate(monkeypatch):
    """Real kernels before and after one that makes its context unusable."""
    monkeypatch.setattr(Worker, "command", (sys.executable, FAULTY))
    monkeypatch.setenv("FAULTY_REAL", "1")
    target = resolve_target("cuda")
    with Measurer(SPEC, WEIGHT, target, MeasureOptions(repeats=2, min_repeat_ms=0.1, builders=1)) as measurer:
        good = Candidate("folded_cuda")
        before, bad, after = measurer.measure([good, Candidate("run poisons the GPU"), good])
    assert (before.status, before.cause) == ("ok", "")
    assert bad.status == "run_failed"
    assert "CUDA error" in bad.cause
    assert (after.status, after.cause) == ("ok", "")


FAULTS = {
    "folded_cpu": ("build SIGSEGV", "build_failed", "was killed by SIGSEGV"),
    "csr_cpu": ("run allocates 10 GB", "run_failed", "took more than 0.391 GiB"),
}


def test_causes_reach_the_log_and_the_summary(tmp_path, monkeypatch, capsys):
    """A whole search in which two of three schedules misbehave."""
    monkeypatch.setattr(Worker, "command", (sys.executable, FAULTY))
    monkeypatch.setenv("FAULTS", json.dumps({name: how for name, (how, _, _) in FAULTS.items()}))
    log = TuningLog(tmp_path / "log.jsonl")
    task = session.Task(("conv1",), SPEC, WEIGHT, SparsityPattern.of(WEIGHT))
    progress = LiveProgress(progress_console())
    progress.start([task], 9)
    session.tune_task(task, TARGET, log, TuneOptions(trials=9, batch=2, measure=OPTIONS), progress)
    progress.end()
    records = TuningLog(log.path).records
    assert len(records) == 9
    for record in records:
        _, status, cause = FAULTS.get(record.schedule.partition(":")[0], ("", "ok", ""))
        assert record.status == status
        assert cause in record.cause
    failures = progress.tasks[0].to_json()["causes"]
    assert sum(each["count"] for each in failures) == sum(record.status != "ok" for record in records) > 2
    shown = capsys.readouterr().err
    for _, _, cause in FAULTS.values():
        assert any(cause in each["cause"] for each in failures)
        assert cause in shown
    assert {each["schedule"] for each in failures} == set(FAULTS)


def test_nothing_is_timed_beside_a_build_or_another_timing():
    order, device = [], f"test-{os.getpid()}"
    release = threading.Event()

    def time_something():
        with device_lock.alone(device):
            order.append("timed")

    with device_lock.together(device), device_lock.together(device):
        thread = threading.Thread(target=time_something)
        thread.start()
        assert not release.wait(0.3)
        order.append("built")
    thread.join()
    assert order == ["built", "timed"]


def test_each_device_has_its_own_lock(monkeypatch):
    gpu_property.cache_clear()
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-12/3,1")
    assert device_lock.name("cuda") == "gpu-GPU-12_3"
    assert device_lock.name("llvm") == "cpu"
    gpu_property.cache_clear()
