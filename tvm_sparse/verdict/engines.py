"""What runs a contender's file: this package for artifacts, ONNX Runtime for ONNX files, torch for its own.

A process imports what its contender needs: ONNX Runtime waits for no TVM.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tvm_sparse.compiler.checking.random_inputs import random_inputs
from tvm_sparse.conv.storage import stored
from tvm_sparse.runtime.signature import TensorSpec

# Runs a model on the inputs that it was opened with, and returns its outputs when it has finished.
Call = Callable[[], Any]


def _artifact(request: dict[str, Any]) -> Call:
    """A model that was saved."""
    from tvm_sparse.runtime import artifact
    from tvm_sparse.runtime.calls import caller

    model = artifact.load(request["path"], trust=request["trust"])
    call = caller(model, _inputs(request))
    return call if not model.signature.single else lambda: [call()]


def _onnx(request: dict[str, Any]) -> Call:
    """An ONNX file in ONNX Runtime, on inputs in the file's types."""
    from tvm_sparse.compiler.checking.onnx_session import runner

    run = runner(request["path"], request["threads"])
    inputs = [stored(value, dtype) for value, dtype in zip(_inputs(request), request["dtypes"], strict=True)]
    return lambda: run(inputs)


def _torch(request: dict[str, Any]) -> Call:
    """A .pt2 file under `torch.compile`."""
    from tvm_sparse.verdict.torch_compile import open_program

    return open_program(Path(request["path"]), _inputs(request), request["dtype"], request["device"])


ENGINES = {"artifact": _artifact, "onnx": _onnx, "torch": _torch}


def _inputs(request: dict[str, Any]) -> list[np.ndarray]:
    specs = [TensorSpec(each["name"], tuple(each["shape"]), each["dtype"]) for each in request["specs"]]
    return random_inputs(specs, request["seed"])
