"""Models that are exported for a GPU, on a driver and a cuDNN that compute on the host."""

import os
import subprocess
from pathlib import Path

import cuda_emulator
import exported
import fake_cudnn

from tvm_sparse.compiler import build_plan
from tvm_sparse.cudnn import library
from tvm_sparse.exporter import bytecode, gpu
from tvm_sparse.exporter.library import Library

SUPPORT = Path(__file__).parent
TARGET = {"kind": "cuda", "arch": "sm_90a", "host": {"kind": "llvm", "num-cores": 1, "opt-level": 1}}


def fakes(folder):
    """The folder of both libraries, as LD_LIBRARY_PATH has it."""
    fake_cudnn.compiled(folder / "lib")
    driver = folder / "lib" / "libcuda.so.1"
    flags = ("-shared", "-fPIC", "-O1", "-Wall", "-Wextra", f"-Wl,-soname,{driver.name}")
    subprocess.run(["cc", *flags, SUPPORT / "fake_cuda.c", "-o", driver, "-ldl", "-lpthread"], check=True)
    return folder / "lib"


def made(monkeypatch, libraries, module, inputs, folder):
    """A module or file, compiled and exported, with the libraries of its kernels."""
    monkeypatch.setattr(library, "_found", lambda: libraries / library.NAME)
    monkeypatch.setattr(library, "_loaded", lambda: None)
    # Without a GPU TVM keeps kernels as source, and nothing can be verified.
    monkeypatch.setattr(gpu, "_LOADED", {"cuda"})
    monkeypatch.setattr(build_plan, "verify", lambda *_: {})
    model, out = exported.made(module, inputs, folder, target=TARGET, log=folder / "log.jsonl", compare=False)
    data = Library.of((out / "model.so").read_bytes()).data
    modules = [data[each.offset :][: each.size_bytes].decode() for each in bytecode.read(data).modules]
    return model, out, list(map(cuda_emulator.kernel_library, modules))


def run(program, libraries, arguments, kernels=(), **variables):
    """What a program does with the fakes, and its lines on standard error; `variables` of `fake_cuda.c`."""
    listed = {"FAKE_CUDA_KERNELS": ":".join(map(str, kernels))} if kernels else {}
    environment = {**os.environ, "LD_LIBRARY_PATH": str(libraries), **listed, **variables}
    done = subprocess.run([program, *arguments], capture_output=True, timeout=60, env=environment, check=False)
    return done.returncode, done.stdout, done.stderr.decode().splitlines()
