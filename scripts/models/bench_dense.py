"""Time dense convolutions of one thread: our kernels with default decisions beside ONNX Runtime's, in turns.

    python scripts/models/bench_dense.py
    python scripts/models/bench_dense.py --schedules dense_cpu,folded_cpu --layers 3x224x64x7x2

A layer is input channels x input size x filters x filter size x stride. Each result is compared with float64 first.
Prints for each space how many times as long as ONNX Runtime it takes, by the least times of all rounds. Times are of
the calling thread's clock, which stands still while others have the core.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tvm

from tvm_sparse.benchmarks.cpu_contenders import onnx_runtime_call
from tvm_sparse.codegen import lowering
from tvm_sparse.conv.random_weights import normal_weight
from tvm_sparse.conv.reference import random_arguments, reference
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.schedules import spaces_of
from tvm_sparse.scheduling.kernel import apply_decisions
from tvm_sparse.target.resolve import resolve_target

# Layers of ResNet-18 and ResNet-50.
LAYERS = (
    "3x224x64x7x2,64x56x64x3x1,64x56x128x3x2,128x28x128x3x1,256x14x256x3x1,512x7x512x3x1,"
    "64x56x256x1x1,256x56x64x1x1,512x28x128x1x1,1024x14x256x1x1,512x7x2048x1x1"
)
RIVAL = "ONNX Runtime"
# What a contender's turn in a round takes, microseconds.
SPAN_US = 2000


def times_of(spec: ConvSpec, schedules: list[str], rounds: int) -> dict[str, float]:
    """Least microseconds of a call, by the name of the space."""
    target = resolve_target({"kind": "llvm", "num-cores": 1})
    weight, x = normal_weight(spec, 1.0, 0), random_arguments(spec, 0)["x"]
    expected = reference(spec, x, weight)
    calls = {RIVAL: onnx_runtime_call(spec, weight, x, 1)}
    for space in spaces_of(spec, SparsityPattern.of(weight), target, schedules)[0]:
        kernel = apply_decisions(space, weight)
        arrays = (x, *kernel.constants, np.full(spec.output_shape, np.nan, np.float32))
        arguments = [tvm.runtime.tensor(array) for array in arrays]
        function = lowering.build(kernel.func, target)["main"]
        calls[space.name] = lambda function=function, arguments=arguments: function(*arguments)
        calls[space.name]()
        expected.check(space.name, arguments[-1].numpy())
    numbers = {name: max(1, round(SPAN_US / _time_us(call, 3))) for name, call in calls.items()}
    every = [{name: _time_us(call, numbers[name]) for name, call in calls.items()} for _ in range(rounds)]
    return {name: min(each[name] for each in every) for name in calls}


def _time_us(call: Callable[[], Any], number: int) -> float:
    """Mean time of a call, in microseconds of this thread."""
    begin = time.thread_time()
    for _ in range(number):
        call()
    return (time.thread_time() - begin) / number * 1e6


def main() -> None:
    """Print a block of lines for each layer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", default=LAYERS, help="(default: %(default)s)")
    parser.add_argument("--schedules", default="dense_cpu", help="such as dense_cpu,folded_cpu (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=12, help="(default: %(default)s)")
    options = parser.parse_args()
    for layer in options.layers.split(","):
        c, size, k, taps, stride = map(int, layer.split("x"))
        spec = ConvSpec(1, c, size, size, k, taps, taps, stride=(stride, stride), padding=(taps // 2,) * 4)
        times = times_of(spec, options.schedules.split(","), options.rounds)
        rival = times.pop(RIVAL)
        print(f"{layer}: {RIVAL} {rival:.4g} us")
        for name, own in times.items():
            print(f"    {name:<28} {own / rival:.2f}", flush=True)


if __name__ == "__main__":
    main()
