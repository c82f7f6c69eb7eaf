"""A process that runs ONNX files and misbehaves: ``python faulty_onnx_worker.py FAULT``, in place of `onnx_worker`."""

import os
import sys
import time

import onnx

from tvm_sparse.compiler.comparison import onnx_worker
from tvm_sparse.measure.serve import serve


def crash(_request):
    """As a bug in ONNX Runtime would end it."""
    os.abort()


def hang(_request):
    """Beyond any time limit of a test."""
    time.sleep(100)


def memory(_request):
    """More of it than a test allows."""
    _held = b"x" * (600 << 20)
    time.sleep(100)


def wrong_abs(request):
    """As an ONNX Runtime whose Abs is Neg; the reference implementation stays right."""
    if request["engine"] == "runtime":
        model = onnx.load(request["path"])
        for node in model.graph.node:
            node.op_type = "Neg" if node.op_type == "Abs" else node.op_type
        onnx.save(model, request["path"] + ".wrong.onnx")
        request = {**request, "path": request["path"] + ".wrong.onnx"}
    return onnx_worker.run(request)


def no_runtime(request):
    """As an ONNX Runtime that lacks an operator."""
    if request["engine"] == "runtime":
        raise RuntimeError("not implemented")
    return onnx_worker.run(request)


if __name__ == "__main__":
    serve({"open": lambda _request: {}, "run": globals()[sys.argv[1]]})
