"""Run an ONNX file in ONNX Runtime, in a process that needs nothing else: TVM is not imported."""

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np


def serves(path: Path) -> bool:
    """Whether a file is one for ONNX Runtime, and that is installed."""
    return path.suffix == ".onnx" and importlib.util.find_spec("onnxruntime") is not None


def runner(path: Path | str, threads: int) -> Callable[[Sequence[np.ndarray]], list[np.ndarray]]:
    """A function that runs an ONNX file with ONNX Runtime on the CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    # Its warnings are about what it makes of the file, its errors are raised too.
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    return lambda inputs: session.run(None, dict(zip(names, inputs, strict=True)))


def onnx_runtime(path: Path, threads: int) -> Callable[[Sequence[np.ndarray]], list[np.ndarray]] | None:
    """As `runner`; None where that is not possible here."""
    return runner(path, threads) if serves(path) else None
