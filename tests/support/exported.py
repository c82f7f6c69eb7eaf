"""Exported models and the C library that runs them, built with the compiler of this machine."""

import ctypes
import hashlib
import struct
import subprocess
from pathlib import Path

import numpy as np
import torch
import zoo
from torch import nn

from tvm_sparse.compiler import build_model
from tvm_sparse.exporter.export import export
from tvm_sparse.runtime import artifact

# LLVM leaves pointers to functions that nobody calls in code that it does not optimise.
TARGET = {"kind": "llvm", "opt-level": 1, "num-cores": 2}
STRICT = ("-std=c11", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden")
HEADER_BYTES = 56
# A program that loads plans, and makes contexts of those that are not refused.
LOAD = """\
#include "tvm_sparse.h"

int main(int count, char **plans) {
  for (int i = 1; i < count; i++) {
    tvm_sparse_model *model = tvm_sparse_load(plans[i]);
    tvm_sparse_context *context = model ? tvm_sparse_context_new(model, 1) : NULL;
    if (!context && !*tvm_sparse_error()) return 1;
    tvm_sparse_context_free(context);
    tvm_sparse_free(model);
  }
  return 0;
}
"""
FUNCTIONS = {
    "load": (ctypes.c_void_p, [ctypes.c_char_p]),
    "free": (None, [ctypes.c_void_p]),
    "input_count": (ctypes.c_int, [ctypes.c_void_p]),
    "output_count": (ctypes.c_int, [ctypes.c_void_p]),
    "input": (ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_int]),
    "output": (ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_int]),
    "context_new": (ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_int]),
    "context_free": (None, [ctypes.c_void_p]),
    "context_threads": (ctypes.c_int, [ctypes.c_void_p]),
    "run": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]),
    "result": (ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_int]),
    "error": (ctypes.c_char_p, []),
}


class Tensor(ctypes.Structure):
    """``tvm_sparse_tensor``."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("type", ctypes.c_char_p),
        ("rank", ctypes.c_int),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("size_bytes", ctypes.c_size_t),
    )

    def described(self):
        """Name, shape and element type, as a `TensorSpec` has them."""
        return self.name.decode(), tuple(self.shape[: self.rank]), self.type.decode()


class Lookup(nn.Module):
    """Some columns of each sample of x, (N, 3, 8), which that of i, (N, 4), says, and their sum."""

    def forward(self, x, i):
        taken = x.gather(2, i[:, None].expand(-1, 3, -1))
        return taken, taken.sum((1, 2))


def made(module, inputs, folder, **options):
    """A torch module, or a file without inputs, compiled, and exported to ``folder/out``."""
    options = {"target": TARGET, **options}
    model = build_model.compile(module, inputs and tuple(map(torch.from_numpy, inputs)), **options)
    return model, export(artifact.save(model, folder / "model.sparse"), folder / "out")


def of_zoo(name, folder):
    """A network of the zoo so, and inputs."""
    module, shapes = zoo.TORCH[name]
    inputs = zoo.inputs_of(shapes)
    return *made(module, inputs, folder / name), inputs


def build(folder, program, *flags, sources=None, compiler="gcc"):
    """The executable of the C library in `folder` and ``main.c``, or other `sources`."""
    library = sorted((folder / "tvm_sparse_run").glob("*.c"))
    command = [compiler, *STRICT, "-O1", *flags, f"-I{folder / 'tvm_sparse_run'}", *(sources or [folder / "main.c"])]
    subprocess.run([*command, *library, "-rdynamic", "-ldl", "-lpthread", "-o", program], check=True)
    return program


def shared(folder, path):
    """The C library in `folder` as Python sees it: functions without their prefix."""
    build(folder, path, "-shared", "-fPIC", "-Wl,-Bsymbolic", sources=[])
    library = ctypes.CDLL(str(path))
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(library, f"tvm_sparse_{name}")
        function.restype, function.argtypes = result, arguments
        setattr(library, name, function)
    return library


def outputs_of(model, inputs):
    """The outputs of a model in Python, as a list."""
    outputs = model(*inputs)
    return [outputs] if model.signature.single else outputs


def addresses(arrays):
    """What C takes for a list of tensors."""
    return (ctypes.c_void_p * len(arrays))(*(each.ctypes.data for each in arrays))


def empty_outputs(model):
    return [np.empty(each.shape, each.dtype) for each in model.signature.outputs]


def called(library, plan, model, inputs, threads):
    """The outputs of one call in C, or the sentence with which it ends."""
    handle = library.load(bytes(plan))
    assert handle, library.error()
    context, outputs = library.context_new(handle, threads), empty_outputs(model)
    failed = library.run(context, addresses(inputs), addresses(outputs))
    library.context_free(context)
    library.free(handle)
    return library.error().decode() if failed else outputs


def signed(plan: bytes) -> bytes:
    """`plan` with the size and the SHA-256 that it should have."""
    head, body = plan[:16], plan[HEADER_BYTES:]
    return head + struct.pack("<Q", len(plan)) + hashlib.sha256(body).digest() + body


def changed(folder: Path, copy: Path, change) -> Path:
    """A copy of the exported `folder` whose plan is what `change` makes of it; returns the plan."""
    copy.mkdir()
    (copy / "model.so").symlink_to(folder / "model.so")
    plan = copy / "model.plan"
    plan.write_bytes(change((folder / "model.plan").read_bytes()))
    return plan


def mutated(plan: bytes, draw) -> bytes:
    """`plan` with another number somewhere, as `draw`, a `random.Random`, says."""
    at = draw.randrange(HEADER_BYTES, len(plan) - 8)
    kind, value = draw.choice([("B", 1 << 8), ("<I", 1 << 32), ("<Q", 1 << 64)])
    data = struct.pack(kind, draw.choice([0, 1, value - 1, value // 2, draw.randrange(value)]))
    return signed(plan[:at] + data + plan[at + len(data) :])
