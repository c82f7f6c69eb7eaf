"""A network as torch runs it: as a CUDA graph, by `torch.compile`, or call by call."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.models.row import GRAPH, NHWC, Way

Call = Callable[[], Any]
# Element type, and whether TF32 may take its place on tensor cores, which convolutions may by default.
_PRECISIONS = {"fp32": (torch.float32, False), "tf32": (torch.float32, True), "fp16": (torch.float16, True)}
# By the number of an image's axes too.
_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
WARM_UP_CALLS = 3


def call_of(way: Way, module: Any, x: Any) -> Call:
    """A call that returns the output; `module` and `x` are copied. What torch raises where it cannot."""
    dtype, tf32 = _PRECISIONS[way.precision]
    layout = _CHANNELS_LAST[x.ndim] if way.layout == NHWC else torch.contiguous_format
    own = copy.deepcopy(module).to(dtype=dtype, memory_format=layout)
    inputs = x.to(dtype=dtype, memory_format=layout)
    _allow(tf32)
    if way.how == GRAPH:
        return _graph(own, inputs)
    return _warm(torch.compile(own, mode=way.how) if way.is_compiled else own, inputs, tf32)


def _allow(tf32: bool) -> None:
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = tf32


def _warm(module: Any, x: Any, tf32: bool) -> Call:
    def call() -> Any:
        # What was compiled is compiled again where it finds another setting.
        _allow(tf32)
        with torch.no_grad():
            return module(x)

    for _ in range(WARM_UP_CALLS):
        call()
    return call


@dataclass(frozen=True)
class _Replay:
    """Replays a graph; keeps what it reads, which torch would give back to the GPU as the next graph is recorded."""

    graph: Any
    output: Any
    read: tuple[Any, Any]

    def __call__(self) -> Any:
        self.graph.replay()
        return self.output


def _graph(module: Any, x: Any) -> Call:
    """Replays of a graph, recorded after cuDNN has chosen its algorithms."""
    with torch.no_grad():
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP_CALLS):
                module(x)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output = module(x)
    return _Replay(graph, output, (module, x))
