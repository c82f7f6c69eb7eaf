"""Calls that compute one convolution on the CPU: with our kernels, PyTorch (oneDNN) and ONNX Runtime.

Each call works on tensors made before and returns its output.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tvm

from benchmarks.onnx_graph import GraphBuilder
from tvm_sparse.codegen import lowering
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.schedules.lookup import make_kernel
from tvm_sparse.target.resolve import resolve_target

OURS, DENSE, NCHW, NHWC, ORT = "tvm-sparse", "tvm-sparse dense", "oneDNN NCHW", "oneDNN NHWC", "ONNX Runtime"
ONEDNN, BASELINES = (NCHW, NHWC), (NCHW, NHWC, ORT)
Call = Callable[[], Any]


def compiled_call(name: str, decisions: Any, spec: ConvSpec, weight: np.ndarray, x: np.ndarray, threads: int) -> Call:
    """Our kernel called ``schedule`` or ``schedule:variant``."""
    target = resolve_target({"kind": "llvm", "num-cores": threads})
    kernel = make_kernel(name, spec, weight, target, decisions)
    function = lowering.build(kernel.func, target)["main"]
    y = tvm.runtime.tensor(np.full(spec.output_shape, np.nan, np.float32))
    arguments = [tvm.runtime.tensor(array) for array in (x, *kernel.constants)]

    def call() -> Any:
        function(*arguments, y)
        return y

    return call


def torch_call(spec: ConvSpec, weight: np.ndarray, x: np.ndarray, channels_last: bool) -> Call:
    """PyTorch's convolution, input and weight in the given layout."""
    import torch

    layout = torch.channels_last if channels_last else torch.contiguous_format
    data, filters = (torch.from_numpy(array).to(memory_format=layout) for array in (x, weight))
    stride, padding, dilation, groups = spec.stride, spec.padding[:2], spec.dilation, spec.groups
    return lambda: torch.nn.functional.conv2d(data, filters, None, stride, padding, dilation, groups)


def onnx_runtime_call(spec: ConvSpec, weight: np.ndarray, x: np.ndarray, threads: int) -> Call:
    """ONNX Runtime with input and output bound, so that nothing is copied."""
    import onnxruntime

    graph = GraphBuilder("layer", spec.input_shape)
    graph.conv("conv", "x", weight, stride=spec.stride[0], padding=spec.padding[0], groups=spec.groups)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    model = graph.model("conv", spec.output_shape, "y").SerializeToString()
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    binding, y = session.io_binding(), np.empty(spec.output_shape, np.float32)
    binding.bind_ortvalue_input("x", onnxruntime.OrtValue.ortvalue_from_numpy(x))
    binding.bind_output("y", "cpu", 0, np.float32, spec.output_shape, y.ctypes.data)

    def call() -> Any:
        session.run_with_iobinding(binding)
        return y

    return call


def contenders(
    spec: ConvSpec, weight: np.ndarray, x: np.ndarray, threads: int, kernels: Mapping[str, tuple[str, Any]]
) -> dict[str, Call]:
    """Calls by name: of our `kernels`, each a schedule and its decisions (None: the defaults), and the baselines'."""
    return {
        **{name: compiled_call(*kernel, spec, weight, x, threads) for name, kernel in kernels.items()},
        NCHW: torch_call(spec, weight, x, False),
        NHWC: torch_call(spec, weight, x, True),
        ORT: onnx_runtime_call(spec, weight, x, threads),
    }
