"""Jobs of `check_gpu.py`, one a kernel, and what its worker processes do with them: build, verify, time."""

from __future__ import annotations

import os
import random
import statistics
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from random_convolutions import Case, random_case, random_kernel, random_weight

from tvm_sparse.benchmarks.gpu.cuda_graph_clock import GpuClock, median_us
from tvm_sparse.conv.spec import ConvSpec

# Convolutions of real networks, larger than the random ones; each is run with every variant's default decisions.
LARGE = (
    ConvSpec(4, 64, 56, 56, 64, 3, 3, padding=(1, 1, 1, 1), bias=True, relu=True),
    ConvSpec(1, 3, 224, 224, 64, 7, 7, stride=(2, 2), padding=(3, 3, 3, 3), bias=True),
    ConvSpec(4, 64, 14, 14, 256, 1, 1, residual=True, relu=True),
    ConvSpec(1, 128, 28, 28, 96, 3, 3, stride=(2, 2), padding=(1, 1, 1, 1)),
    ConvSpec(1, 32, 112, 112, 32, 3, 3, padding=(1, 1, 1, 1), groups=32, relu=True),
    ConvSpec(3, 48, 13, 13, 72, 5, 5, padding=(2, 2, 2, 2), residual=True),
    ConvSpec(1, 512, 7, 7, 128, 1, 1, bias=True),
    ConvSpec(64, 32, 8, 8, 64, 5, 5, padding=(2, 2, 2, 2)),
    ConvSpec(1, 16, 113, 227, 24, 3, 3, dilation=(2, 2), padding=(2, 2, 2, 2), bias=True),
    ConvSpec(2, 24, 200, 10, 32, 3, 3, padding=(0, 0, 1, 2), groups=2),
)
# Operators of Dong et al. 2020, Table 2: number -> (output height and width, C, K); 3x3, padding 1, density 0.1.
OPERATORS = {6: (56, 64, 64), 7: (28, 128, 128), 9: (224, 64, 64), 10: (112, 64, 128)}
DENSITY = 0.1
# Why a job has no kernel where its schedule does not apply.
NOT_SERVED = "does not serve this convolution"
# Images of a large batch.
MANY = 40


@dataclass(frozen=True)
class Job:
    """One kernel: the convolution, the schedule (``name`` or ``name:variant``) and the seed of what is random.

    Without `spec` the convolution and the decisions are random, else the decisions are the defaults. Every fourth
    random convolution has `MANY` images, so that thread blocks may outnumber multiprocessors: these have other code.
    """

    schedule: str
    seed: int
    spec: ConvSpec | None = None

    def case(self) -> Case:
        """The convolution, its weight and its inputs' seed."""
        if self.spec is None:
            case = random_case(random.Random(self.seed).choice)
            return case if self.seed % 4 else replace(case, spec=replace(case.spec, n=MANY))
        return Case(self.spec, pruned_weight(self.spec, self.seed), self.seed, integers=False)


@dataclass(frozen=True)
class Result:
    """Largest error as a fraction of its bound, or why there is none; `times_us` by the way it was measured."""

    job: Job
    kernel: str
    worst: float | None = None
    failure: str = ""
    times_us: dict[str, float] | None = None

    @property
    def passed(self) -> bool:
        """Whether the kernel ran and met its bound."""
        return self.worst is not None and self.worst <= 1


def pruned_weight(spec: ConvSpec, seed: int) -> np.ndarray:
    """A normal weight whose smallest values are zero, of density `DENSITY`."""
    weight = random_weight(spec, 1.0, "unstructured", seed, integers=False)
    weight[np.abs(weight) < np.quantile(np.abs(weight), 1 - DENSITY)] = 0
    return weight


def random_jobs(cases: int, seed: int, schedules: Sequence[str]) -> list[Job]:
    """`cases` random convolutions, each with every schedule."""
    return [Job(schedule, seed * 1_000_003 + i) for i in range(cases) for schedule in schedules]


def large_jobs(schedules: Sequence[str]) -> list[Job]:
    """Every variant of every schedule that serves a convolution of `LARGE`."""
    return [Job(name, 0, spec) for spec in LARGE for name in _variants(spec, schedules)]


def operator_jobs(schedules: Sequence[str]) -> list[Job]:
    """Table 2's operators at batch 1 and 64 with every schedule's default decisions."""
    specs = [
        ConvSpec(n, c, size, size, k, 3, 3, padding=(1, 1, 1, 1)) for size, c, k in OPERATORS.values() for n in (64, 1)
    ]
    return [Job(schedule, 0, spec) for spec in specs for schedule in schedules]


def _variants(spec: ConvSpec, schedules: Sequence[str]) -> list[str]:
    from tvm_sparse.conv.sparsity import SparsityPattern
    from tvm_sparse.schedules import spaces_of

    pattern = SparsityPattern.of(pruned_weight(spec, 0))
    found, _ = spaces_of(spec, pattern, target(), list(schedules))
    return [each.name for each in found if each.apply is not None]


def target() -> Any:
    """The TVM target of this machine's GPU."""
    from tvm_sparse.target.resolve import resolve_target

    return resolve_target("cuda")


def build(job: Job, folder: str) -> tuple[str, str, str]:
    """Build a job's kernel into `folder`: (name of its space, path of the library without suffix, why it failed)."""
    from tvm_sparse.codegen import lowering
    from tvm_sparse.conv.sparsity import SparsityPattern
    from tvm_sparse.errors import TvmSparseError
    from tvm_sparse.schedules import spaces_of
    from tvm_sparse.scheduling.kernel import apply_decisions

    case, cuda = job.case(), target()
    found, _ = spaces_of(case.spec, SparsityPattern.of(case.weight), cuda, [job.schedule.partition(":")[0]])
    found = [
        each for each in found if each.apply is not None and (":" not in job.schedule or each.name == job.schedule)
    ]
    if not found:
        return job.schedule, "", NOT_SERVED
    choose = random.Random(zlib.crc32(f"{job.seed} {job.schedule}".encode())).choice
    chosen = choose(found) if job.spec is None else found[0]
    path = str(Path(folder) / f"{os.getpid()}-{time.monotonic_ns()}")
    try:
        random_decisions = job.spec is None and choose((True, True, False))
        kernel = (
            random_kernel(chosen, case.weight, choose) if random_decisions else apply_decisions(chosen, case.weight)
        )
        lowering.build(kernel.func, cuda).export_library(f"{path}.so")
    except (TvmSparseError, RuntimeError, ValueError) as error:
        return chosen.name, "", f"{type(error).__name__}: {str(error)[-1000:]}"
    np.savez(f"{path}.npz", *kernel.constants)
    return chosen.name, path, ""


def run(job: Job, kernel: str, path: str, timed: bool) -> Result:
    """Verify a built kernel, its output filled with NaN before, and time it where `timed`."""
    import tvm

    from tvm_sparse.conv import reference

    case, device = job.case(), tvm.cuda(0)
    spec = case.spec
    arguments = reference.random_arguments(spec, case.seed, case.integers)
    with np.load(f"{path}.npz", allow_pickle=False) as made:
        constants = [made[name] for name in made]
    epilogue = [arguments[name] for name in ("bias", "residual") if name in arguments]
    y = np.full(spec.output_shape, np.nan, np.float32)
    try:
        tensors = [tvm.runtime.tensor(value, device) for value in (arguments["x"], *constants, *epilogue, y)]
        module = tvm.runtime.load_module(f"{path}.so")
        module["main"](*tensors)
        device.sync()
        worst = _worst(case, arguments, tensors[-1].numpy())
        times = _times_us(module, tensors, device) if timed else None
    except RuntimeError as error:
        return Result(job, kernel, failure=str(error)[-1000:])
    failure = "" if worst <= 1 else "the result differs from the reference"
    return Result(job, kernel, worst, failure, times)


def _worst(case: Case, arguments: dict[str, np.ndarray], y: np.ndarray) -> float:
    """The largest error; of a large batch all must be written, and the first and the last image are compared."""
    from tvm_sparse.conv import reference

    if case.spec.n < 16:
        expected = reference.reference(
            case.spec, arguments["x"], case.weight, arguments.get("bias"), arguments.get("residual")
        )
        if case.integers:
            return 0.0 if np.array_equal(y, expected.value) else float("inf")
        return expected.worst(y)
    if np.isnan(y).any():
        return float("inf")
    one, errors = replace(case.spec, n=1), []
    for i in (slice(0, 1), slice(-1, None)):
        residual = arguments["residual"][i] if "residual" in arguments else None
        expected = reference.reference(one, arguments["x"][i], case.weight, arguments.get("bias"), residual)
        errors.append(expected.worst(y[i]))
    return max(errors)


def _times_us(module: Any, tensors: list[Any], device: Any) -> dict[str, float]:
    """Time of a call: by TVM's evaluator ("loop") and, where torch is installed, from a CUDA graph ("graph")."""
    results = module.time_evaluator("main", device, number=20, repeat=10, min_repeat_ms=5)(*tensors).results
    times = {"loop": statistics.median(results) * 1e6}
    if _has_torch():
        function = module["main"]
        times["graph"] = median_us(GpuClock(), lambda: function(*tensors))
    return times


def _has_torch() -> bool:
    return find_spec("torch") is not None


def cudnn_times_us(spec: ConvSpec, weight: np.ndarray) -> dict[str, float]:
    """cuDNN through torch, best of NCHW and NHWC: {"fp32": time, "tf32": time}; empty where torch has no GPU."""
    if not _has_torch():
        return {}
    import torch

    from tvm_sparse.benchmarks.baselines import cudnn

    if not torch.cuda.is_available():
        return {}
    clock, times = GpuClock(), {}
    x = torch.randn(*spec.input_shape, device=clock.device)
    for precision in ("fp32", "tf32"):
        found = []
        for layout in cudnn.LAYOUTS:
            prepared = cudnn.Cudnn(precision, layout).prepare(spec, weight, clock.device)
            found.append(median_us(clock, prepared.bind(prepared.load(x))))
        times[precision] = min(found)
    return times
