"""Is the cuDNN that layers are compared with as fast as torch's? Layers of ResNet-50 and others, on one GPU.

    python scripts/stress/check_cudnn.py --batch 1 --batch 64

For each layer and precision: the fastest of what `tune` measures, warm; torch's, the better of both layouts with
``cudnn.benchmark``, for the convolution alone and with bias and ReLU; the workspace that cuDNN asks for, as a share of
what is planned; and what it refuses. Times are microseconds. The exit code is 1 where ours, which has bias and ReLU,
takes more than 1.1 times as long as torch's with them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import tvm

from tvm_sparse.codegen import lowering
from tvm_sparse.conv import reference
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.cudnn import library, packed_function
from tvm_sparse.cudnn.api import Cudnn
from tvm_sparse.cudnn.convolution import Convolution
from tvm_sparse.cudnn.plan import Plan
from tvm_sparse.errors import TvmSparseError
from tvm_sparse.measure.clock import warm_clock
from tvm_sparse.schedules.dense_cudnn import CudnnSpace
from tvm_sparse.scheduling.kernel import apply_decisions
from tvm_sparse.target.resolve import resolve_target

# Name -> (C, H, K, R, stride, groups), square, padded to keep the size.
LAYERS = {
    "stem 7x7": (3, 224, 64, 7, 2, 1),
    "64 3x3": (64, 56, 64, 3, 1, 1),
    "64-256 1x1": (64, 56, 256, 1, 1, 1),
    "128 3x3 stride 2": (128, 56, 128, 3, 2, 1),
    "128 3x3": (128, 28, 128, 3, 1, 1),
    "512-128 1x1": (512, 28, 128, 1, 1, 1),
    "256 3x3": (256, 14, 256, 3, 1, 1),
    "1024-256 1x1": (1024, 14, 256, 1, 1, 1),
    "512 3x3": (512, 7, 512, 3, 1, 1),
    "VGG 64 3x3": (64, 224, 64, 3, 1, 1),
    "depthwise 96": (96, 56, 96, 3, 1, 96),
}
ROUNDS, CALLS, SLOWER = 5, 20, 1.1


def main() -> int:
    """Print a row a layer and precision."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, action="append", help="default: 1 and 64")
    batches = parser.parse_args().batch or [1, 64]
    packed_function.register()
    print(f"cuDNN {library.version()} at {library.find()}, torch {torch.__version__}")
    found = Cudnn(library.load())
    # TVM makes the GPU current on this thread.
    tvm.cuda(0).sync()
    cudnn, is_slow = (found, found.create_handle()), False
    for batch in batches:
        for name, (c, h, k, r, stride, groups) in LAYERS.items():
            pad = r // 2
            spec = ConvSpec(batch, c, h, h, k, r, r, (stride, stride), (pad,) * 4, (1, 1), groups, bias=True, relu=True)
            weight = np.random.default_rng(0).standard_normal(spec.weight_shape).astype(np.float32)
            for precision in ("fp32", "tf32"):
                ours_us, choice, refused = _ours(spec, weight, precision, cudnn)
                alone_us, whole_us = _torch(spec, weight, precision)
                slow = ours_us > SLOWER * whole_us
                is_slow |= slow
                print(
                    f"batch {batch:3} {name:17} {precision}  ours {ours_us:8.1f} ({choice})  torch {alone_us:8.1f}, "
                    f"with bias and ReLU {whole_us:8.1f}{'  SLOW' if slow else ''}{''.join(refused)}",
                    flush=True,
                )
    return int(is_slow)


def _ours(spec: ConvSpec, weight: np.ndarray, precision: str, cudnn: tuple[Cudnn, int]) -> tuple[float, str, list[str]]:
    """The fastest time, its decisions with the share of the workspace, and what is refused."""
    target, device, space = resolve_target("cuda"), tvm.cuda(0), CudnnSpace(spec, precision)
    x, bias = (tvm.runtime.tensor(array, device) for array in reference.random_arguments(spec, 0).values())
    y = tvm.runtime.empty(spec.output_shape, "float32", device)
    found, refused = [], []
    for start in space.starts():
        text = "/".join(start.values())
        kernel = apply_decisions(space, weight, start)
        module = lowering.build(kernel.func, target)
        constants = [tvm.runtime.tensor(each, device) for each in kernel.constants]
        try:
            module["main"](x, *constants, bias, y)
            clock = warm_clock(module, [x, *constants, bias, y], 1.0)
            time_us = min(clock.time_us() for _ in range(ROUNDS))
            clock.close()
        except TvmSparseError as error:
            refused.append(f"\n    refused: {error}")
            continue
        share = _workspace_share(Plan(spec, tf32=precision == "tf32", **start), *cudnn)
        found.append((time_us, f"{text}, workspace {share:.0%}"))
    return (*min(found, default=(float("inf"), "none")), refused)


def _workspace_share(plan: Plan, cudnn: Cudnn, handle: int) -> float:
    """What cuDNN asks for, of what is planned."""
    return Convolution(cudnn, handle, plan).needed_bytes / plan.workspace_bytes


def _torch(spec: ConvSpec, weight: np.ndarray, precision: str) -> tuple[float, float]:
    """Of the convolution alone, and with bias and ReLU; the better of both layouts."""
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    times = []
    for layout in (torch.contiguous_format, torch.channels_last):
        x = torch.randn(spec.input_shape, device="cuda").contiguous(memory_format=layout)
        filters = torch.from_numpy(weight).cuda().contiguous(memory_format=layout)
        bias = torch.randn(spec.k, device="cuda")
        rest = (spec.stride, spec.padding[:2], spec.dilation, spec.groups)

        def alone(x: Any = x, filters: Any = filters, rest: Any = rest) -> Any:
            return torch.nn.functional.conv2d(x, filters, None, *rest)

        def whole(x: Any = x, filters: Any = filters, bias: Any = bias, rest: Any = rest) -> Any:
            return torch.nn.functional.conv2d(x, filters, bias, *rest).relu_()

        times.append((_replayed_us(alone), _replayed_us(whole)))
    return min(each for each, _ in times), min(each for _, each in times)


def _replayed_us(call: Callable[[], Any]) -> float:
    """Of one call in a CUDA graph of several, the fastest of some replays."""
    with torch.inference_mode():
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(3):
                call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(CALLS):
                call()
        found = []
        for _ in range(ROUNDS + 1):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            found.append(start.elapsed_time(end) * 1e3 / CALLS)
    return min(found)


if __name__ == "__main__":
    sys.exit(main())
