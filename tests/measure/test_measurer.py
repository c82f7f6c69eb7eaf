"""A candidate that hangs, crashes or is wrong costs only itself: its cause is kept and the next one is measured."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from tvm_sparse.codegen import lowering
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.errors import BuildError
from tvm_sparse.files.temporary import TemporaryFolder
from tvm_sparse.measure import worker_main
from tvm_sparse.measure.kernel_run import _Inputs, run
from tvm_sparse.measure.measurer import Measurer
from tvm_sparse.measure.outcome import Candidate, MeasureOptions
from tvm_sparse.measure.serve import UNCONVERTED, constants_path
from tvm_sparse.measure.worker import Worker
from tvm_sparse.schedules.lookup import make_kernel
from tvm_sparse.target.resolve import resolve_target, target_json

TARGET = resolve_target('{"kind":"llvm","num-cores":1}')
SPEC = ConvSpec(1, 2, 5, 5, 4, 3, 3, padding=(1, 1, 1, 1), bias=True)
WEIGHT = np.where(np.random.default_rng(0).random(SPEC.weight_shape) < 0.4, 1.5, 0).astype(np.float32)
FAULTY = str(Path(__file__).parents[1] / "support" / "faulty_worker.py")
OPTIONS = MeasureOptions(repeats=3, min_repeat_ms=0.1, builders=1)


@pytest.fixture
def faulty(monkeypatch):
    """Candidates do what their schedule's name says; a build or run may take 4 s."""
    monkeypatch.setattr(Worker, "command", (sys.executable, FAULTY))
    options = MeasureOptions(repeats=3, build_timeout_s=4, run_timeout_s=4, builders=1)
    with Measurer(SPEC, WEIGHT, TARGET, options) as measurer:
        yield measurer


def ends(pid, seconds=10.0):
    """Whether a process ends in time; a zombie has ended."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("step", ["build", "run"])
@pytest.mark.parametrize(
    ("how", "status", "cause"),
    [
        ("SIGKILL", "{}_failed", "was killed by SIGKILL"),
        ("SIGSEGV", "{}_failed", "was killed by SIGSEGV"),
        ("exits", "{}_failed", "exited with code 7; last output: the last words"),
        ("crashes", "{}_failed", "exited with code 1; .* not an error that the worker expects"),
        ("raises", "{}_failed", "RuntimeError: out of registers"),
        ("hangs", "timeout", "{} took longer than 4 s"),
    ],
)
def test_a_fault_costs_only_its_candidate(faulty, step, how, status, cause):
    bad, good = faulty.measure([Candidate(f"{step} {how}"), Candidate("good")])
    assert bad.status == status.format(step)
    assert bad.times_us == ()
    assert re.search(cause.format(step), bad.cause), bad.cause
    assert (good.status, good.cause, good.times_us) == ("ok", "", (10.0, 10.0, 10.0))


@pytest.mark.parametrize("how", ["is wrong", "writes nothing", "is undefined"])
def test_wrong_results_are_not_timed(faulty, how):
    bad, good = faulty.measure([Candidate(f"run {how}"), Candidate("good")])
    assert (bad.status, bad.times_us) == ("wrong", ())
    assert "times the error bound" in bad.cause
    assert good.status == "ok"


def test_what_a_kernel_prints_is_no_answer(faulty):
    outcomes = list(faulty.measure([Candidate("build prints"), Candidate("run prints")]))
    assert [outcome.status for outcome in outcomes] == ["ok", "ok"]


def test_a_hanging_build_takes_its_compilers_along(faulty, tmp_path):
    note = tmp_path / "compiler"
    (outcome,) = faulty.measure([Candidate(f"build leaves a compiler={note}")])
    assert outcome.status == "timeout"
    assert ends(int(note.read_text()))


def test_baselines_are_timed_in_the_same_run(faulty):
    (before,) = faulty.measure([Candidate("good")])
    assert before.dense_times_us == ()
    faulty.set_baseline(Candidate("dense"))
    (after,) = faulty.measure([Candidate("good")])
    assert (after.times_us, after.dense_times_us) == ((10.0,) * 3, (20.0,) * 3)


def test_what_is_too_fast_to_be_true_is_timed_again(faulty):
    """The dense kernel takes 20 us, and 0.4 of the weights are left: 0.1 us are no gain of theirs."""
    faulty.set_baseline(Candidate("dense"))
    once, always = faulty.measure([Candidate("run is too fast once"), Candidate("run is too fast")])
    assert (once.status, once.times_us) == ("ok", (10.0,) * 3)
    assert (always.status, always.times_us) == ("run_failed", ())
    assert always.cause == "0.1 us beside 20 of the dense kernel, twice, is less than its arithmetic allows"


def test_a_baseline_that_does_not_build_is_an_error(faulty):
    with pytest.raises(BuildError, match=r"the dense kernel does not build again: .*SIGKILL"):
        faulty.set_baseline(Candidate("build SIGKILL"))


def test_files_and_processes_end_with_the_measurer(faulty):
    folder = Path(faulty._folder.name)
    faulty.set_baseline(Candidate("dense"))
    assert len(list(faulty.measure([Candidate("run exits"), Candidate("build exits"), Candidate("good")]))) == 3
    # Beside the arguments, only the baseline's library and constants are left of four candidates.
    assert len(list(folder.iterdir())) == 3
    pids = [each._channel.pid for each in (*faulty._workers, faulty._runner) if each._channel]
    assert pids
    faulty.__exit__(None, None, None)
    assert all(ends(pid) for pid in pids)
    assert not folder.exists()


def test_a_killed_process_s_folder_goes_with_the_next_one(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "tvm_sparse_of_somebody").mkdir()
    code = f"import tempfile, time; tempfile.tempdir = {str(tmp_path)!r}\n"
    code += "from tvm_sparse.files.temporary import TemporaryFolder\n"
    code += "workspace = TemporaryFolder(); print(workspace.name, flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        folder = Path(process.stdout.readline().strip())
        first = TemporaryFolder()
        assert folder.is_dir(), "removed while its process lived"
        process.kill()
    second = TemporaryFolder()
    assert not folder.exists()
    for workspace in (first, second):
        workspace.cleanup()
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["tvm_sparse_of_somebody"]


@pytest.mark.parametrize("step", ["build", "run"])
def test_ctrl_c_does_not_wait_for_a_hanging_candidate(step):
    code = f"""
import signal, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from tvm_sparse.frontend.optional_imports import without_torch
with without_torch():
    from test_measurer import *
signal.signal(signal.SIGINT, signal.default_int_handler)
Worker.command = (sys.executable, FAULTY)
options = MeasureOptions(builders=2)
with Measurer(SPEC, WEIGHT, TARGET, options) as measurer:
    print(Path(measurer._folder.name), flush=True)
    list(measurer.measure([Candidate("good")]))
    print("measured", flush=True)
    list(measurer.measure([Candidate("{step} hangs")] * 5))
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=-1, text=True) as tuner:
        folder = Path(tuner.stdout.readline().strip())
        assert tuner.stdout.readline() == "measured\n"
        time.sleep(1)
        tuner.send_signal(signal.SIGINT)
        start_s = time.monotonic()
        assert "KeyboardInterrupt" in tuner.communicate(timeout=60)[1]
        assert time.monotonic() - start_s < 10
    assert not folder.exists()


def test_workers_die_with_a_killed_tuner():
    hanging = {"action": "build", "schedule": "build hangs"}
    code = (
        f"import sys; from tvm_sparse.measure.worker import Worker; Worker.command = [sys.executable, {FAULTY!r}]\n"
        f"worker = Worker({{}}); worker._start(); print(worker._channel.pid, flush=True); worker.ask({hanging}, 600)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as tuner:
        pid = int(tuner.stdout.readline())
        time.sleep(0.5)
        os.kill(tuner.pid, signal.SIGKILL)
    assert ends(pid)


def test_a_worker_that_does_not_start_is_an_error(monkeypatch):
    monkeypatch.setattr(Worker, "command", (sys.executable, "-c", "raise SystemExit('no TVM here')"))
    with Measurer(SPEC, WEIGHT, TARGET, OPTIONS) as measurer, pytest.raises(BuildError, match="no TVM here"):
        list(measurer.measure([Candidate("good")]))


def test_real_kernels_are_built_verified_and_timed():
    with Measurer(SPEC, WEIGHT, TARGET, OPTIONS) as measurer:
        measurer.set_baseline(Candidate("dense_cpu"))
        damaged = [[["GetSBlock"]], []]
        candidates = (("folded_cpu", None), ("folded_gpu", None), ("folded_cpu", damaged), ("generated_cpu", damaged))
        sparse, *failed = measurer.measure([Candidate(*each) for each in candidates])
    assert sparse.status == "ok"
    assert 0 <= sparse.error <= 1
    assert len(sparse.times_us) == len(sparse.dense_times_us) == OPTIONS.repeats
    assert min(*sparse.times_us, *sparse.dense_times_us) > 0
    assert [each.status for each in failed] == ["build_failed"] * 3
    causes = ("unknown for target llvm", "takes decisions by name, found list", "the trace is damaged")
    assert all(cause in each.cause for each, cause in zip(failed, causes, strict=True))


@pytest.mark.parametrize("change", [lambda value, bound: value + 2 * bound, lambda value, bound: value * np.nan])
def test_the_worker_verifies_before_it_times(tmp_path, change):
    with Measurer(SPEC, WEIGHT, TARGET, OPTIONS) as measurer:
        arrays, library = dict(np.load(measurer._arrays)), str(tmp_path / "kernel.so")
    names = {"arrays": str(tmp_path / "arrays.npz"), "library": library, "baseline": None, "kind": "llvm"}
    np.savez(names["arrays"], **arrays)
    build = {"spec": SPEC.to_json(), "target": target_json(TARGET), "schedule": "folded_cpu", "decisions": None}
    worker_main.build({**names, **build})
    request = {**names, "repeats": 2, "min_repeat_ms": 0.1}
    assert len(run(request)["times_us"]) == 2
    kernel = make_kernel("folded_cpu", SPEC, WEIGHT, TARGET)
    lowering.build(kernel.func, TARGET, **{UNCONVERTED: kernel.func}).export_library(library)
    answer = run({**request, "cold": True, "model_bytes": 1 << 20})
    assert [len(answer[f"unconverted_{kind}times_us"]) for kind in ("", "cold_")] == [2, 2]
    wrong = str(tmp_path / "wrong.npz")
    np.savez(wrong, **{**arrays, "value": change(arrays["value"], arrays["bound"])})
    answer = run({**request, "arrays": wrong})
    assert answer["error"] > 1
    assert answer["times_us"] == []


@pytest.mark.parametrize(
    ("target", "schedule", "names"),
    [
        (TARGET, "folded_cpu", []),
        (TARGET, "csr_cpu", ["shape_0", "shape_1", "shape_2", "shape_3"]),
        (TARGET, "dense_cpu", ["shape_0"]),
        (resolve_target({"kind": "cuda", "arch": "sm_90"}), "data_cuda", ["model_0"]),
    ],
)
def test_the_worker_says_who_shares_a_kernel_s_code(tmp_path, target, schedule, names):
    """In the names of the arrays that it makes of the weight."""
    library = str(tmp_path / "kernel.so")
    np.savez(tmp_path / "arrays.npz", weight=WEIGHT)
    request = {"arrays": str(tmp_path / "arrays.npz"), "schedule": schedule, "decisions": None, "library": library}
    worker_main.build({**request, "spec": SPEC.to_json(), "target": target_json(target)})
    with np.load(constants_path(library)) as arrays:
        assert list(arrays) == names


@pytest.mark.parametrize("wrong", [None, 0, 1, 2, 4])
def test_one_wrong_image_of_a_batch_is_found(tmp_path, wrong):
    value, images = np.random.default_rng(0).standard_normal((2, 3, 4, 4)), np.array([0, 1, 0, 1, 1])
    x = np.zeros((2, 1, 4, 4), np.float32)
    np.savez(
        tmp_path / "arrays.npz", value=value, bound=np.full(value.shape, 1e-5), images=images, x=x, largest_input=1.0
    )
    y = value.astype(np.float32)[images]
    if wrong is not None:
        y[wrong, 2, 3, 3] += [1, np.nan][wrong % 2]
    found = _Inputs(str(tmp_path / "arrays.npz"), "llvm").worst(y)
    assert (found > 1) == (wrong is not None)
    assert found < np.inf or wrong == 1


def test_an_error_does_not_wait_for_queued_builds(monkeypatch):
    """Whatever fails in this process, a full disk say: of what waits to be built hardly anything is begun."""
    begun = []

    def build(_self, candidate, _library):
        begun.append(candidate.schedule)
        time.sleep(0.02)

    def run(_self, _library, _tf32):
        raise OSError("no space left on device")

    monkeypatch.setattr(Measurer, "_build", build)
    monkeypatch.setattr(Measurer, "_run", run)
    with Measurer(SPEC, WEIGHT, TARGET, MeasureOptions(builders=1)) as measurer:
        # A GPU's kernels are run while others are being built.
        measurer._device = "gpu"
        with pytest.raises(OSError, match="no space left"):
            list(measurer.measure([Candidate(f"kernel {index}") for index in range(50)]))
    assert 1 <= len(begun) < 25
