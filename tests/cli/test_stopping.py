"""Ctrl-C, SIGTERM and a closed terminal: `optimize` leaves an artifact, nothing leaves a process or half a file."""

import contextlib
import fcntl
import json
import os
import pty
import random
import shlex
import signal
import subprocess
import sys
import termios
import time
from dataclasses import dataclass
from pathlib import Path

import faulty_worker
import numpy as np
import onnx
import psutil
import pytest
import zoo
from onnx.reference import ReferenceEvaluator

from tvm_sparse.errors import typed
from tvm_sparse.runtime import artifact

# Python's own handlers, which a process that was started in the background has not.
HEED = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
MAIN = "from tvm_sparse.cli.main import main; sys.exit(main())"
SENTENCE = "tvm-sparse: interrupted, the best so far is compiled"
TARGET = '{"kind":"llvm","num-cores":1,"opt-level":0}'
X = np.random.default_rng(1).standard_normal((1, 8, 12, 12)).astype(np.float32)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The path of a model with one convolution."""
    weight = (np.random.default_rng(0).random((16, 8, 3, 3)) < 0.25).astype(np.float32)
    nodes = [("Conv", ["x", "w"], ["y"], {"pads": [1, 1, 1, 1]})]
    path = tmp_path_factory.mktemp("models") / "tiny.onnx"
    onnx.save(zoo.onnx_model(nodes, {"w": weight}, {"x": X.shape}, {"y": (1, 16, 12, 12)}), path)
    return path


@dataclass
class Run:
    """A command in a session, a home and a temporary folder of its own."""

    folder: Path
    process: subprocess.Popen
    model: Path
    words: list[str]
    errors: str = ""

    def wait_until(self, holds):
        deadline_s = time.monotonic() + 120
        while not holds():
            assert self.process.poll() is None and time.monotonic() < deadline_s, self.process.communicate()
            time.sleep(0.01)

    def is_heeded(self):
        """Whether the signals find a handler."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        (caught,) = (int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigCgt"))
        return caught >> (signal.SIGTERM - 1) & 1

    def records(self):
        return sum(path.read_text().count("\n") for path in (self.folder / "home").rglob("*.jsonl"))

    def send(self, number):
        """As a terminal does, to the whole group, but for SIGTERM."""
        (os.kill if number == signal.SIGTERM else os.killpg)(self.process.pid, number)

    def end(self):
        """The exit code; nobody and nothing may be left behind."""
        if self.process.stderr is not None and not self.process.stderr.closed:
            self.errors = self.process.communicate(timeout=120)[1]
        self.process.wait(120)
        assert "Traceback" not in self.errors and "Exception ignored" not in self.errors, self.errors
        assert [each for each in psutil.process_iter() if self._is_ours(each)] == []
        # ONNX Runtime keeps its session's number there.
        left = {each.name for each in (self.folder / "tmp").iterdir()} - {".ses"}
        assert left <= {f"tvm-sparse-locks-{os.getuid()}"}
        assert [each.name for each in (self.folder / "out").iterdir() if each.name.startswith(".")] == []
        return self.process.returncode

    def _is_ours(self, other):
        try:
            is_alive = other.status() != psutil.STATUS_ZOMBIE
            return is_alive and other.environ().get("TVM_SPARSE_HOME", "").startswith(str(self.folder / "home"))
        except psutil.Error:
            return False

    def check_artifact(self, name="a"):
        """It gives what the model gives."""
        (expected,) = ReferenceEvaluator(str(self.model)).run(None, {"x": X})
        found = artifact.load(self.folder / "out" / f"{name}.sparse")(X)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)

    def check_stopped(self, number):
        assert self.end() == 128 + number, self.errors
        self.check_artifact()
        again = typed(shlex.join(self.words))
        assert self.errors.splitlines()[-1] == f"{SENTENCE}; continue with: {again}"


def start(folder, model, *more, code=MAIN, streams=None, **variables):
    """`optimize` for `model`, or other `code`, started."""
    for name in ("home", "tmp", "out"):
        (folder / name).mkdir(parents=True)
    words = ["--target", TARGET, *more]
    if code != AT_MOMENTS:
        words = ["optimize", str(model), "-o", str(folder / "out" / "a.sparse"), *words]
    variables |= {"TVM_SPARSE_HOME": str(folder / "home"), "TMPDIR": str(folder / "tmp")}
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    pipes |= streams or {}
    process = subprocess.Popen([sys.executable, "-c", HEED + code, *words], env={**os.environ, **variables}, **pipes)
    return Run(folder, process, model, words)


# Runs commands, each with a function at whose first call the signal comes, to the whole group.
AT_MOMENTS = """
import json, os
from importlib import import_module
from pathlib import Path
from tvm_sparse.cli.main import main
from tvm_sparse.frontend.optional_imports import without_torch

def run(index, words, place, number):
    module, _, name = place.partition(":")
    owner = import_module(module)
    real = getattr(owner, name)

    def first(*arguments, **options):
        setattr(owner, name, real)
        # A compiler has started then.
        result = real(*arguments, **options) if name == "Popen" else None
        os.killpg(0, number)
        return result or real(*arguments, **options)

    setattr(owner, name, first)
    os.environ["TVM_SPARSE_HOME"] = str(folder / "home" / str(index))
    return main([*words, "-o", str(folder / "out" / f"{index}.sparse"), *sys.argv[1:]])

folder = Path(os.environ["FOLDER"])
with without_torch():
    codes = [run(index, *moment) for index, moment in enumerate(json.loads(os.environ["MOMENTS"]))]
(folder / "codes").write_text(json.dumps(codes))
"""


def test_from_import_to_saving(model, tmp_path):
    optimize, compile_ = ["optimize", str(model), "--minutes", "0"], ["compile", str(model)]
    moments = [
        (optimize, "tvm_sparse.request.request:prepare", signal.SIGINT),
        (optimize, "tvm_sparse.compiler.build_model:build_plan", signal.SIGHUP),
        (optimize, "subprocess:Popen", signal.SIGINT),
        (optimize, "tvm_sparse.runtime.saving:_manifest", signal.SIGTERM),
        (compile_, "tvm_sparse.runtime.saving:_manifest", signal.SIGTERM),
    ]
    run = start(tmp_path, model, code=AT_MOMENTS, FOLDER=str(tmp_path), MOMENTS=json.dumps(moments))
    assert run.end() == 0, run.errors
    assert json.loads((tmp_path / "codes").read_text()) == [128 + number for *_, number in moments]
    for index in range(4):
        run.check_artifact(index)
    assert not (tmp_path / "out" / "4.sparse").exists()
    assert run.errors.count(f"{SENTENCE}; continue with: {typed('optimize')} {model}") == 4
    assert run.errors.splitlines()[-1] == "tvm-sparse: interrupted"


def test_a_hanging_candidate_is_not_waited_for(model, tmp_path):
    note = tmp_path / "note"
    worker = Path(faulty_worker.__file__)
    code = f"from tvm_sparse.measure.worker import Worker; Worker.command = (sys.executable, {str(worker)!r})\n{MAIN}"
    run = start(tmp_path / "run", model, code=code, FAULTS=json.dumps({"dense_cpu": f"build leaves a compiler={note}"}))
    run.wait_until(note.exists)
    run.send(signal.SIGTERM)
    run.check_stopped(signal.SIGTERM)
    # Which it would be if the time given to a build had ended it.
    assert run.records() == 0


@pytest.mark.conformance
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_fifty_random_moments(number, model, tmp_path):
    draw, words = random.Random(number), ("--minutes", "0.3")
    whole = start(tmp_path / "whole", model, *words, TVM_SPARSE_COMPARE="1")
    whole.wait_until(whole.is_heeded)
    start_s = time.monotonic()
    assert whole.end() == 0
    total_s, stopped = time.monotonic() - start_s, 0
    for attempt in range(200):
        run = start(tmp_path / str(attempt), model, *words, TVM_SPARSE_COMPARE="1")
        # Half of them after the first trial, which a busy machine comes to late.
        run.wait_until(run.records if attempt % 2 else run.is_heeded)
        moment_s = draw.uniform(0, total_s / (1 + attempt % 2))
        time.sleep(moment_s)
        if run.process.poll() is not None:
            assert run.end() == 0
            continue
        run.send(number)
        code = run.end()
        print(f"{moment_s:.2f} of {total_s:.1f} s: {run.records()} trials, exit code {code}")
        # A signal that comes when all is done ends what is left of the process.
        assert code in (128 + number, -number), run.errors
        run.check_artifact()
        stopped += 1
        if stopped == 50:
            return
    pytest.fail(f"{stopped} of 50 runs were stopped")


@pytest.mark.conformance
def test_a_reader_of_the_progress_that_ctrl_c_ends_too(model, tmp_path):
    """As ``2>&1 | tee`` is."""
    run = start(tmp_path, model)
    run.wait_until(run.records)
    run.send(signal.SIGINT)
    assert any("stopping, the best so far" in line for line in run.process.stderr)
    run.process.stderr.close()
    assert run.end() == 128 + signal.SIGINT
    run.check_artifact()


@pytest.mark.conformance
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_terminal(number, model, tmp_path):
    """Ctrl-C is typed, or its window is closed."""
    ours, theirs = pty.openpty()
    text, streams = [], dict.fromkeys(("stdin", "stdout", "stderr"), theirs)
    streams["preexec_fn"] = lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    run = start(tmp_path, model, streams=streams)
    os.close(theirs)
    while not run.records():
        text.append(os.read(ours, 4096))
    if number == signal.SIGINT:
        os.write(ours, b"\x03")
        # Linux says so when nobody has the other end.
        with contextlib.suppress(OSError):
            while received := os.read(ours, 4096):
                text.append(received)
        assert f"{SENTENCE}; " in b"".join(text).decode()
    os.close(ours)
    assert run.end() == 128 + number
    run.check_artifact()
