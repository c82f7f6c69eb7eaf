"""The process that runs ONNX files: ``python -m tvm_sparse.compiler.comparison.onnx_worker``.

Only names of files travel. What a model does to the process (crash, hang, all the memory) ends with the process.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from tvm_sparse.errors import first_line
from tvm_sparse.measure.serve import serve

# Runs a model: its inputs in their order to its outputs.
Run = Callable[[Sequence[np.ndarray]], list[Any]]


def runtime(path: str) -> Run:
    """The model in `path` in ONNX Runtime, as the file has it: without its optimisations, which take time."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    # Threads that wait busily would slow down who compiles meanwhile.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    return lambda inputs: session.run(None, dict(zip(names, inputs, strict=True)))


def evaluator(path: str) -> Run:
    """The model in `path` in the reference implementation of the package onnx."""
    import onnx
    from onnx.reference import ReferenceEvaluator

    model = onnx.load(path)
    constants = {tensor.name for tensor in model.graph.initializer}
    names = [value.name for value in model.graph.input if value.name not in constants]
    found = ReferenceEvaluator(model)
    return lambda inputs: found.run(None, dict(zip(names, inputs, strict=True)))


ENGINES = {"runtime": runtime, "evaluator": evaluator}


@lru_cache(maxsize=1)
def _opened(engine: str, path: str) -> Run:
    return ENGINES[engine](path)


def open_model(request: dict[str, Any]) -> dict[str, Any]:
    """Read the file ``path`` with ``engine``, for a run of it that may follow."""
    # Neither's errors share a class.
    try:
        _opened(request["engine"], request["path"])
    except Exception as error:
        raise RuntimeError(first_line(error)) from error
    return {}


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Run the file ``path`` with ``engine`` on the arrays in ``inputs``; writes ``outputs``."""
    open_model(request)
    with np.load(request["inputs"], allow_pickle=False) as arrays:
        inputs = [arrays[name] for name in arrays.files]
    try:
        outputs = _opened(request["engine"], request["path"])(inputs)
    except Exception as error:
        raise RuntimeError(first_line(error)) from error
    if any(isinstance(each, list | dict) or each is None for each in outputs):
        raise RuntimeError("an output is no tensor")
    np.savez(request["outputs"], *map(np.asarray, outputs))
    return {}


if __name__ == "__main__":
    serve({"open": open_model, "run": run})
