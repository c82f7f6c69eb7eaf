"""Ctrl-C, SIGTERM and a closed terminal: `optimize` leaves an artifact, nothing leaves a process or half a file."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import psutil
import pytest
import zoo
from onnx.reference import ReferenceEvaluator

from tvm_sparse.logs.tuning_log import TuningLog
from tvm_sparse.runtime import artifact

# Python's own handlers, which a process that was started in the background has not.
HEED = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
MAIN = "from tvm_sparse.cli.main import main; sys.exit(main())"
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
    words: tuple[str, ...]
    errors: str = ""

    @property
    def output(self):
        return self.folder / "out" / "a.sparse"

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
        self.errors = self.process.communicate(timeout=120)[1]
        assert "Traceback" not in self.errors and "ignored" not in self.errors, self.errors
        assert [each for each in psutil.process_iter() if self._is_ours(each)] == []
        # ONNX Runtime keeps its session's number there.
        left = {each.name for each in (self.folder / "tmp").iterdir()} - {".ses"}
        assert left <= {f"tvm-sparse-locks-{os.getuid()}"}
        assert {each.name for each in self.output.parent.iterdir()} <= {self.output.name}
        return self.process.returncode

    def _is_ours(self, other):
        try:
            is_alive = other.status() != psutil.STATUS_ZOMBIE
            return is_alive and other.environ().get("TMPDIR") == str(self.folder / "tmp")
        except psutil.Error:
            return False

    def check_artifact(self):
        """It gives what the model gives."""
        (expected,) = ReferenceEvaluator(str(self.model)).run(None, {"x": X})
        np.testing.assert_allclose(artifact.load(self.output)(X).numpy(), expected, rtol=1e-4, atol=1e-4)

    def check_stopped(self, number):
        assert self.end() == 128 + number, self.errors
        self.check_artifact()
        again = f"continue with: tvm-sparse {self.words[0]} "
        assert f"tvm-sparse: interrupted, the best so far is compiled; {again}" in self.errors.splitlines()[-1]


def start(folder, model, command, *words, code=MAIN):
    """`command` for `model`, started."""
    for name in ("home", "tmp", "out"):
        (folder / name).mkdir(parents=True)
    output = ["-o", str(folder / "out" / "a.sparse")] if command != "tune" else ["-o", str(folder / "home" / "log.jsonl")]
    words = (command, str(model), *output, "--target", TARGET, *words)
    variables = {"TVM_SPARSE_HOME": str(folder / "home"), "TMPDIR": str(folder / "tmp"), "TVM_SPARSE_COMPARE": "1"}
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    process = subprocess.Popen([sys.executable, "-c", HEED + code, *words], env={**os.environ, **variables}, **pipes)
    return Run(folder, process, model, words)


@pytest.mark.conformance
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_fifty_random_moments(number, model, tmp_path):
    draw, words = random.Random(number), ("optimize", "--minutes", "0.1")
    whole = start(tmp_path / "whole", model, *words)
    whole.wait_until(whole.is_heeded)
    start_s = time.monotonic()
    assert whole.end() == 0
    total_s, stopped = time.monotonic() - start_s, 0
    for attempt in range(200):
        run = start(tmp_path / str(attempt), model, *words)
        run.wait_until(run.is_heeded)
        moment_s = draw.uniform(0, total_s)
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
