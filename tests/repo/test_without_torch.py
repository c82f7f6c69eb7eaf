"""Processes that are wholly ours do not wait for torch, which TVM would import."""

import subprocess
import sys

import onnx
import pytest
import torch
import zoo

COMMANDS = {
    "command line": ("tvm_sparse", "inspect", "block.onnx"),
    "device": ("tvm_sparse.measure.worker_main", "tvm_sparse.autotune.fleet.device_tuner"),
}


def run(folder, *words):
    """What a process says that must end well."""
    command = [sys.executable, *words]
    done = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done


def imported(folder, *words):
    """The modules that a process imports."""
    done = run(folder, "-X", "importtime", "-m", *words)
    return {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}


@pytest.mark.parametrize("name", COMMANDS)
def test_torch_is_not_imported(tmp_path, name):
    onnx.save(zoo.ONNX["block"], tmp_path / "block.onnx")
    found = imported(tmp_path, *COMMANDS[name])
    # An import that fails is listed too.
    assert "tvm" in found and "torch.nn" not in found


def test_a_model_of_torch_s_is_read_with_it(tmp_path):
    module, shapes = zoo.TORCH["residual"]
    torch.export.save(zoo.export_quietly(module, zoo.inputs_of(shapes)), tmp_path / "m.pt2")
    assert "worth it: " in run(tmp_path, "-m", "tvm_sparse", "inspect", "m.pt2").stdout
