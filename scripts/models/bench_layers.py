"""Time convolutions of one thread: our kernels with default decisions beside ONNX Runtime's and oneDNN's, in turns.

    python scripts/models/bench_layers.py
    python scripts/models/bench_layers.py --schedules dense_cpu,folded_cpu --layers 3x224x64x7x2
    python scripts/models/bench_layers.py --schedules vector_cpu,folded_cpu,csr_cpu --density 0.1 --vector 16

A layer is input channels x input size x filters x filter size x stride. Weights are random, and with `--vector` pruned
in vectors of filters. Each result is compared with float64 first. Prints what the fastest rival takes, and for each
space how many times as long as that, by the least times of all rounds. oneDNN is called through PyTorch, in the better
of its layouts. Times are of the calling thread's clock, which stands still while others have the core.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.cpu_contenders import BASELINES, contenders
from tvm_sparse.conv.random_weights import normal_weight
from tvm_sparse.conv.reference import random_arguments, reference
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.conv.structure import Structure
from tvm_sparse.conv.structured_mask import structured_mask
from tvm_sparse.schedules.lookup import spaces_of
from tvm_sparse.target.resolve import resolve_target

# Layers of ResNet-18 and ResNet-50.
LAYERS = (
    "3x224x64x7x2,64x56x64x3x1,64x56x128x3x2,128x28x128x3x1,256x14x256x3x1,512x7x512x3x1,"
    "64x56x256x1x1,256x56x64x1x1,512x28x128x1x1,1024x14x256x1x1,512x7x2048x1x1"
)
# What a contender's turn in a round takes, microseconds.
SPAN_US = 2000


def random_weight(spec: ConvSpec, density: float, vector: int) -> np.ndarray:
    """A weight of this density, of which every `vector` filters share their zeros."""
    weight = normal_weight(spec, 1.0 if vector > 1 else density, 0)
    if vector == 1:
        return weight
    return np.where(structured_mask(np.abs(weight), Structure.named(f"vector{vector}"), 1 - density), weight, 0)


def times_of(spec: ConvSpec, weight: np.ndarray, schedules: list[str], rounds: int) -> dict[str, float]:
    """Least microseconds of a call, by the name of the space or rival."""
    import torch

    torch.set_num_threads(1)
    target = resolve_target({"kind": "llvm", "num-cores": 1})
    x = random_arguments(spec, 0)["x"]
    expected = reference(spec, x, weight)
    names = [space.name for space in spaces_of(spec, SparsityPattern.of(weight), target, schedules)[0]]
    calls = contenders(spec, weight, x, 1, {name: (name, None) for name in names})
    for name in names:
        expected.check(name, calls[name]().numpy())
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
    parser.add_argument("--density", type=float, default=1.0, help="of the weights (default: %(default)s)")
    parser.add_argument("--vector", type=int, default=1, help="filters that share their zeros (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=12, help="(default: %(default)s)")
    options = parser.parse_args()
    for layer in options.layers.split(","):
        c, size, k, taps, stride = map(int, layer.split("x"))
        spec = ConvSpec(1, c, size, size, k, taps, taps, stride=(stride, stride), padding=(taps // 2,) * 4)
        weight = random_weight(spec, options.density, options.vector)
        times = times_of(spec, weight, options.schedules.split(","), options.rounds)
        rivals = {name: times.pop(name) for name in BASELINES}
        fastest = min(rivals, key=lambda name: rivals[name])
        print(f"{layer}: " + ", ".join(f"{name} {time_us:.4g} us" for name, time_us in rivals.items()))
        for name, own in times.items():
            print(f"    {name:<40} {own:8.4g} us  {own / rivals[fastest]:.2f} of {fastest}", flush=True)


if __name__ == "__main__":
    main()
