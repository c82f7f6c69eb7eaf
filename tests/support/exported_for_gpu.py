"""Models that are exported for a GPU, on a driver and a cuDNN that compute on the host."""

import os
import subprocess
from pathlib import Path

import cuda_emulator
import exported
import fake_cudnn
import torch
from torch import nn

from tvm_sparse.compiler import build_plan
from tvm_sparse.cudnn import library
from tvm_sparse.exporter import bytecode, gpu
from tvm_sparse.exporter.library import Library

SUPPORT = Path(__file__).parent
TARGET = {"kind": "cuda", "arch": "sm_90a", "host": {"kind": "llvm", "num-cores": 1, "opt-level": 1}}


SESSION = """\
import sys
import numpy as np, onnxruntime, tvm_sparse.ort
tvm_sparse.ort.register(sys.argv[1] + "/libtvm_sparse_ort.so")
session = onnxruntime.InferenceSession(sys.argv[1] + "/fast.onnx", tvm_sparse.ort.session_options())
x = np.fromfile(sys.argv[2], np.float32).reshape(session.get_inputs()[0].shape)
for _ in range(3):
    outputs = session.run(None, {session.get_inputs()[0].name: x})
sys.stdout.buffer.write(b"".join(each.tobytes() for each in outputs))
"""


class Network(nn.Module):
    """Convolutions by cuDNN, with a residual, and kernels of TVM's."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = (nn.Conv2d(8, 8, 3, padding=1) for _ in range(2))
        self.linear = nn.Linear(128, 10)

    def forward(self, x):
        y = torch.relu(self.second(torch.clamp(self.first(x), 0, 6)) + x)
        return self.linear(torch.max_pool2d(y, 2).flatten(1)), y


class Branches(nn.Module):
    """Four branches of three pools each, and their sums."""

    def forward(self, x):
        start = torch.relu(x)
        ends = [start] * 4
        for number in range(12):
            ends[number % 4] = torch.max_pool2d(ends[number % 4], 3 + 2 * (number % 2), 1, 1 + number % 2) * (
                number - 5
            )
        return torch.cat(ends, 1), ends[0] + ends[3]


def fakes(folder):
    """The folder of both libraries, as LD_LIBRARY_PATH has it."""
    fake_cudnn.compiled(folder / "lib")
    driver = folder / "lib" / "libcuda.so.1"
    flags = ("-shared", "-fPIC", "-O1", "-Wall", "-Wextra", f"-Wl,-soname,{driver.name}")
    subprocess.run(["cc", *flags, SUPPORT / "fake_cuda.c", "-o", driver, "-ldl", "-lpthread"], check=True)
    return folder / "lib"


def made(monkeypatch, libraries, module, inputs, folder, **options):
    """A module or file, compiled and exported, with the libraries of its kernels."""
    options = {"target": TARGET, "log": folder / "log.jsonl", "compare": False, **options}
    monkeypatch.setattr(library, "_found", lambda: libraries / library.NAME)
    monkeypatch.setattr(library, "_loaded", lambda: None)
    # Without a GPU TVM keeps kernels as source, and nothing can be verified.
    monkeypatch.setattr(gpu, "_LOADED", {"cuda"})
    monkeypatch.setattr(build_plan, "verify", lambda *_: {})
    model, out = exported.made(module, inputs, folder, **options)
    data = Library.of((out / "model.so").read_bytes()).data
    modules = [data[each.offset :][: each.size_bytes].decode() for each in bytecode.read(data).modules]
    return model, out, list(map(cuda_emulator.kernel_library, modules))


def run(program, libraries, arguments, kernels=(), **variables):
    """What a program does with the fakes, and its lines on standard error; `variables` of `fake_cuda.c`."""
    listed = {"FAKE_CUDA_KERNELS": ":".join(map(str, kernels))} if kernels else {}
    environment = {**os.environ, "LD_LIBRARY_PATH": str(libraries), **listed, **variables}
    done = subprocess.run([program, *arguments], capture_output=True, timeout=60, env=environment, check=False)
    return done.returncode, done.stdout, done.stderr.decode().splitlines()
