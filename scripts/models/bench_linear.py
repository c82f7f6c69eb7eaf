"""Time linear layers alone: our sparse and dense kernels, TVM's matrix product, ONNX Runtime and torch, in turns.

    python scripts/models/bench_linear.py --threads 1 --batch 1,8,64
    python scripts/models/bench_linear.py --target cuda --batch 1,8,64
    python scripts/models/bench_linear.py --target cuda --batch 8,64 --density 1

Ours are every schedule that serves the layer, with default decisions; of dense layers those on tensor cores too. Each
result is compared with float64 first. On a CPU calls are made through Python on tensors that exist; on a GPU they are
replayed from a CUDA graph with the level-2 cache emptied before, torch's also with TF32. Prints a table: medians in
microseconds, and how many times as long as the fastest of ours each rival takes (median and quartiles of the rounds'
ratios).
"""

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import tvm
from tvm import relax
from tvm.target import Target

from benchmarks.cpu_contenders import onnx_runtime_call
from benchmarks.gpu.cuda_graph_clock import GpuClock
from tvm_sparse.codegen import lowering
from tvm_sparse.compiler.relax_pipeline import relax_pipeline
from tvm_sparse.conv.random_weights import normal_weight
from tvm_sparse.conv.reference import random_arguments, reference
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.measure.quartiles import Quartiles
from tvm_sparse.measure.timing import interleave, speedup
from tvm_sparse.runtime.cpu.threads import use_threads
from tvm_sparse.schedules import linear_tensor_cuda
from tvm_sparse.schedules.lookup import spaces_of
from tvm_sparse.scheduling.cuda.linear_tensor.space import DENSE
from tvm_sparse.scheduling.kernel import apply_decisions
from tvm_sparse.scheduling.space import Space
from tvm_sparse.target.compatibility import device_of
from tvm_sparse.target.resolve import resolve_target

# VGG16's classifier, ResNet-50's, and the two layers of a transformer's block.
LAYERS = "25088x4096,4096x4096,4096x1000,2048x1000,768x3072,3072x768"
OURS = {"llvm": ("linear_cpu", "dense_cpu"), "cuda": ("linear_cuda", "csr_cuda", "dense_cuda", linear_tensor_cuda.NAME)}
# A result may differ from float64 by this share of the largest value; TF32 has 10 bits.
TOLERANCE, TF32_TOLERANCE = 1e-4, 1e-2
Calls = dict[str, Callable[[], Any]]


def spaces(spec: ConvSpec, pattern: SparsityPattern, target: Target) -> list[Space]:
    """Of each schedule, and the dense variant on tensor cores, which serves fewer images than that schedule offers."""
    found = spaces_of(spec, pattern, target, list(OURS[target.kind.name]))[0]
    dense = linear_tensor_cuda.named(spec, pattern, target, DENSE) if target.kind.name == "cuda" else None
    named = {each.name: each for each in (*found, dense) if each}
    return list(named.values())


def ours(spec: ConvSpec, weight: np.ndarray, x: np.ndarray, target: Target) -> Calls:
    """One call for each space, with default decisions."""
    calls: Calls = {}
    device = device_of(target)
    for space in spaces(spec, SparsityPattern.of(weight), target):
        kernel = apply_decisions(space, weight)
        arrays = (x, *kernel.constants, np.full(spec.output_shape, np.nan, np.float32))
        arguments = [tvm.runtime.tensor(array, device) for array in arrays]
        function = lowering.build(kernel.func, target)["main"]

        def call(function: Any = function, arguments: list = arguments) -> Any:
            function(*arguments)
            return arguments[-1]

        calls[space.name] = call
    return calls


def tvm_product(spec: ConvSpec, weight: np.ndarray, x: np.ndarray, target: Target) -> Callable[[], Any]:
    """What Relax makes of the layer where nothing is specialised."""
    builder, data = relax.BlockBuilder(), relax.Var("x", relax.TensorType((spec.n, spec.c), "float32"))
    with builder.function("main", [data]):
        with builder.dataflow():
            matrix = relax.const(np.ascontiguousarray(weight[:, :, 0, 0].T))
            result = builder.emit_output(relax.op.matmul(data, matrix))
        builder.emit_func_output(result)
    executable = lowering.compiled(builder.get(), target, relax_pipeline(target))
    function = relax.VirtualMachine(executable, tvm.cpu())["main"]
    argument = tvm.runtime.tensor(x.reshape(spec.n, spec.c))
    return lambda: function(argument)


def torch_product(weight: np.ndarray, x: torch.Tensor, tf32: bool) -> Callable[[], torch.Tensor]:
    """`torch.nn.functional.linear`."""
    matrix, data = torch.from_numpy(weight[:, :, 0, 0]).to(x.device), x.flatten(1)

    def call() -> torch.Tensor:
        torch.backends.cuda.matmul.allow_tf32 = tf32
        return torch.nn.functional.linear(data, matrix)

    return call


def contenders(spec: ConvSpec, weight: np.ndarray, x: np.ndarray, target: Target) -> Calls:
    """All calls by name, each of which has been checked."""
    calls = ours(spec, weight, x, target)
    if target.kind.name == "cuda":
        data = torch.from_numpy(x).cuda()
        calls |= {f"torch{' TF32' if tf32 else ''}": torch_product(weight, data, tf32) for tf32 in (False, True)}
    else:
        calls["torch"] = torch_product(weight, torch.from_numpy(x), tf32=False)
        calls["TVM"] = tvm_product(spec, weight, x, target)
        calls["ONNX Runtime"] = onnx_runtime_call(spec, weight, x, torch.get_num_threads())
    expected = reference(spec, x, weight).value.reshape(spec.n, -1)
    for name, call in calls.items():
        found = call()
        array = found if isinstance(found, np.ndarray) else (found.cpu() if name.startswith("torch") else found).numpy()
        error = np.abs(array.reshape(expected.shape) - expected).max() / np.abs(expected).max()
        if not error <= (TF32_TOLERANCE if "TF32" in name else TOLERANCE):
            raise SystemExit(f"{name} is wrong on {spec.key}: it differs by {error:.3g} of the largest value")
    return calls


def timed(calls: Calls, rounds: int, on_gpu: bool) -> dict[str, tuple[float, ...]]:
    """Microseconds of each call in each round."""
    if not on_gpu:
        return interleave(calls, rounds, min_round_ms=10)
    clock = GpuClock()
    with clock.running():
        replays = [clock.capture([call]) for call in calls.values()]
        times = [clock.round_us(replays, cold=True) for _ in range(rounds)]
    return dict(zip(calls, zip(*times, strict=True), strict=True))


def main() -> None:
    """Print one row for each layer and batch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", choices=("llvm", "cuda"), default="llvm", help="(default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="of a CPU (default: %(default)s)")
    parser.add_argument("--layers", default=LAYERS, help="inputs x outputs (default: %(default)s)")
    parser.add_argument("--batch", default="1", help="such as 1,8,64 (default: %(default)s)")
    parser.add_argument("--density", type=float, default=0.1, help="(default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=15, help="(default: %(default)s)")
    options = parser.parse_args()
    on_gpu = options.target == "cuda"
    target = resolve_target("cuda" if on_gpu else {"kind": "llvm", "num-cores": options.threads})
    torch.set_num_threads(options.threads)
    use_threads(options.threads)
    for inputs, outputs in (map(int, layer.split("x")) for layer in options.layers.split(",")):
        for batch in map(int, options.batch.split(",")):
            spec = ConvSpec(batch, inputs, 1, 1, outputs, 1, 1)
            weight = normal_weight(spec, options.density, 0)
            times = timed(contenders(spec, weight, random_arguments(spec, 0)["x"], target), options.rounds, on_gpu)
            medians = {name: Quartiles.of(values).median for name, values in times.items()}
            best = min(
                (name for name in times if not name.startswith(("dense", "t", "T", "O"))), key=medians.__getitem__
            )
            print(f"{inputs}x{outputs} batch {batch} density {options.density:g}: {best} {medians[best]:.4g} us")
            for name in (name for name in times if name != best):
                ratio = speedup(times[best], times[name])
                print(f"    {name:<24} {medians[name]:9.4g} us  {ratio.median:.2f}x ({ratio.low:.2f}-{ratio.high:.2f})")


if __name__ == "__main__":
    main()
