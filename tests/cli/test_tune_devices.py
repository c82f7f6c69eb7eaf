"""``tune --devices`` and ``--ray``: what is refused; a run and an interrupt on the device that all machines have."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import psutil
import pytest
import zoo

from tvm_sparse.autotune.fleet.local_devices import ProcessDevice
from tvm_sparse.cli import main
from tvm_sparse.errors import typed
from tvm_sparse.logs.tuning_log import TuningLog


@pytest.fixture
def model(tmp_path):
    """The path of a model with one convolution."""
    weight = (np.random.default_rng(0).random((16, 8, 3, 3)) < 0.25).astype(np.float32)
    nodes = [("Conv", ["x", "w"], ["y"], {"pads": [1, 1, 1, 1]})]
    path = tmp_path / "tiny.onnx"
    onnx.save(zoo.onnx_model(nodes, {"w": weight}, {"x": (1, 8, 12, 12)}, {"y": (1, 16, 12, 12)}), path)
    return path


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--devices", "cpu,cpu"], "--devices: cpu is there 2 times, and all cores work for it already; name it once"),
        (["--devices", "gpu0"], "--devices: not a device, found gpu0; allowed: cpu, or GPUs as CUDA numbers them"),
        (["--devices", "cuda:0", "--target", "llvm"], "cuda:0 is of another kind than the target, found llvm"),
        (["--devices", "cpu", "--ray", "auto"], "are this machine's, and Ray finds its own; give --devices or --ray"),
        (["--ray", "auto"], "ray: the package is not installed; run: pip install 'tvm-sparse[ray]'"),
    ],
)
def test_a_wrong_place_is_one_sentence(model, words, sentence, capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main.main(["tune", str(model), "-o", str(tmp_path / "log.jsonl"), *words]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("tvm-sparse: ") and sentence in error


def test_a_plan_asks_no_device(model, capsys, tmp_path):
    """So it can be made where there is no GPU."""
    words = ["tune", str(model), "-o", str(tmp_path / "log.jsonl"), "--dry-run", "--devices", "cuda:6", "--json"]
    assert main.main(words) == 0
    (task,) = json.loads(capsys.readouterr().out)["tasks"]
    assert any(name.startswith("folded_cuda") for name in task["schedules"])


def test_a_run_on_one_device_is_shown_and_continued(model, capsys, monkeypatch, tmp_path):
    """Kernels are not built; the next test has real ones."""
    monkeypatch.setattr(
        ProcessDevice, "command", (sys.executable, str(Path(zoo.__file__).with_name("faulty_device.py")))
    )
    log = tmp_path / "log.jsonl"
    words = [
        "tune",
        str(model),
        "-o",
        str(log),
        "--devices",
        "cpu",
        "--trials",
        "3",
        "--schedules",
        "csr_cpu",
        "--json",
        "--target",
        json.dumps(zoo.UNOPTIMISED),
    ]
    for new in (3, 0):
        assert main.main(words) == 0
        shown = capsys.readouterr()
        (task,) = json.loads(shown.out)["tasks"]
        assert (task["trials"], task["new_trials"], task["failures"]) == (3, new, {})
        assert f"cpu: {task['layers'][0]}\n[1/1] cpu: {task['layers'][0]}  3/3  " in shown.err
    assert [record.status for record in TuningLog(log).records] == ["ok"] * 3


def test_ctrl_c_ends_the_device_s_processes(model, tmp_path):
    log = tmp_path / "log.jsonl"
    heed = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    code = f"import sys; {heed}; from tvm_sparse.cli import main as cli; sys.exit(cli.main())"
    words = ["tune", model, "-o", log, "--devices", "cpu", "--trials", "500", "--target"]
    words.append(json.dumps(zoo.UNOPTIMISED))
    tuner = subprocess.Popen([sys.executable, "-c", code, *map(str, words)], text=True, stderr=subprocess.PIPE)
    while not log.exists() and tuner.poll() is None:
        time.sleep(0.1)
    others = psutil.Process(tuner.pid).children(recursive=True)
    tuner.send_signal(signal.SIGINT)
    error = tuner.communicate(timeout=60)[1]
    assert tuner.returncode == 130
    assert f"interrupted; continue with: {typed('tune')} {model}" in error
    # The device's tuner, and the workers that it had.
    assert len(others) >= 2
    assert psutil.wait_procs(others, 10)[1] == []
    assert TuningLog(log).rejected == []
