"""Models for the GPU that is here, exported, compute in C what Python does, to the bit."""

import ctypes
import os
import re
import subprocess
import sys
from pathlib import Path

import exported
import numpy as np
import pytest
import torch
from exported_for_gpu import SESSION, SUPPORT, Branches, Network

import tvm_sparse
from tvm_sparse import ort
from tvm_sparse.cudnn import library

pytestmark = pytest.mark.gpu

X = np.random.default_rng(0).standard_normal((1, 8, 8, 8)).astype(np.float32)


def driver():
    """The file of NVIDIA's driver."""
    ctypes.CDLL("libcuda.so.1")
    return re.search(r"/\S*libcuda\.so\S*", Path("/proc/self/maps").read_text())[0]


@pytest.fixture(scope="module", params=[Network, Branches])
def made(request, tmp_path_factory):
    """A folder with an artifact, what it was exported to, an input, and Python's outputs."""
    folder = tmp_path_factory.mktemp(request.param.__name__)
    X.tofile(folder / "x.raw")
    model = tvm_sparse.compile(request.param().eval(), (torch.from_numpy(X),), target="cuda")
    outputs = model(torch.from_numpy(X).cuda())
    tvm_sparse.export(model.save(folder / "model.sparse"), folder / "out")
    return folder, b"".join(each.cpu().numpy().tobytes() for each in outputs)


def run(*command):
    # cuDNN is torch's, which no program but Python finds.
    found = library.find()
    paths = [str(found.parent)] if found else []
    environment = {**os.environ, "LD_LIBRARY_PATH": ":".join([*paths, os.environ.get("LD_LIBRARY_PATH", "")])}
    done = subprocess.run(command, capture_output=True, timeout=300, check=False, env=environment | {"OVERWRITE": "1"})
    return done.returncode, done.stdout, done.stderr.decode().splitlines()


def test_all_ways_to_call(made):
    folder, want = made
    program = exported.build(folder / "out", folder / "calls", sources=[SUPPORT / "export_gpu.c", driver()])
    code, output, said = run(program, folder / "out/model.plan", folder / "x.raw")
    assert (code, said) == (0, ["captured: a first call, and a model that checks indices, cannot go into a CUDA graph"])
    assert output == want


def test_16_threads(made):
    folder, _ = made
    program = exported.build(folder / "out", folder / "threads", sources=[SUPPORT / "export_threads.c"])
    assert run(program, folder / "out/model.plan", "1000", "1", folder / "x.raw") == (0, b"0\n", [])


def test_onnx_runtime(made):
    pytest.importorskip("onnxruntime")
    folder, want = made
    ort.export(folder / "model.sparse", folder / "fast.onnx")
    code, output, said = run(sys.executable, "-c", SESSION, folder, folder / "x.raw")
    assert (code, output) == (0, want), said


def test_saving_and_loading_say_nothing(made, capfd):
    """TVM says a line for each constant of a library that was written after it had run."""
    tvm_sparse.load(made[0] / "model.sparse")(torch.from_numpy(X).cuda())
    assert capfd.readouterr().err == ""
