"""Jobs of `check_kernels.py` on an NVIDIA GPU.

Kernels are built side by side in worker processes and run one after the other in another process, which is replaced
when a kernel breaks its CUDA context.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import numpy as np
import tvm
from kernel_jobs import ERRORS, Job, Result, cause_of, judged, pruned_weight
from random_convolutions import Case

from tvm_sparse.benchmarks.gpu.isolated_process import Runner, pool
from tvm_sparse.codegen import lowering
from tvm_sparse.conv import reference
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.schedules import spaces_of
from tvm_sparse.target.resolve import resolve_target

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
# Every third random convolution has so many images, so that thread blocks may outnumber multiprocessors: these have
# other code.
MANY = 40


def random_jobs(numbers: Sequence[int], seed: int, schedules: Sequence[str]) -> list[Job]:
    """The random convolutions of these numbers, each with every schedule."""
    return [Job(name, seed, i, None if i % 3 else MANY) for i in numbers for name in schedules]


def large_jobs(schedules: Sequence[str]) -> list[Job]:
    """Every variant of every schedule that serves a convolution of `LARGE`."""
    jobs = []
    for spec in LARGE:
        pattern = SparsityPattern.of(pruned_weight(spec, 0))
        found, _ = spaces_of(spec, pattern, resolve_target("cuda"), list(schedules))
        jobs += [Job(each.name, spec=spec) for each in found]
    return jobs


def check(jobs: Sequence[Job], workers: int, target: str = "cuda") -> Iterator[Result]:
    """Build all jobs side by side and run each as it is built; target ``llvm`` tries this where there is no GPU."""
    with tempfile.TemporaryDirectory() as folder, pool(workers) as builders, Runner() as runner:
        for job, future in [(job, builders.submit(build, job, folder, target)) for job in jobs]:
            try:
                result, path = future.result()
            except BrokenProcessPool:
                known = {"schedule": job.schedule.partition(":")[0], "index": job.index, "case": repr(job)}
                result, path = {**known, "cause": "a building process crashed"}, ""
            if not path:
                yield result
                continue
            try:
                worst, cause = runner.call(run, job.case(), path, target)
            except BrokenProcessPool:
                worst, cause = None, "the process crashed"
            if worst is None:
                runner.end()
            yield {**result, "cause": cause} if worst is None else judged(result, worst)


def build(job: Job, folder: str, target: str) -> tuple[Result, str]:
    """Build a job's kernel into `folder`: its result so far, and the library's path without suffix, "" for none."""
    resolved = resolve_target(target)
    result, kernel = job.make(resolved)
    if kernel is None:
        return result, ""
    path = str(Path(folder) / f"{os.getpid()}-{time.monotonic_ns()}")
    try:
        lowering.build(kernel.func, resolved).export_library(f"{path}.so")
    except ERRORS as error:
        return {**result, "cause": cause_of(error)}, ""
    np.savez(f"{path}.npz", *kernel.constants)
    return result, path


def run(case: Case, path: str, target: str = "cuda") -> tuple[float | None, str]:
    """Verify a built kernel, its output filled with NaN before: its largest error, or None and why."""
    device = tvm.cuda(0) if target == "cuda" else tvm.cpu(0)
    arguments = reference.random_arguments(case.spec, case.seed, case.integers)
    with np.load(f"{path}.npz", allow_pickle=False) as made:
        constants = [made[name] for name in made]
    epilogue = [arguments[name] for name in ("bias", "residual") if name in arguments]
    y = np.full(case.spec.output_shape, np.nan, np.float32)
    try:
        tensors = [tvm.runtime.tensor(value, device) for value in (arguments["x"], *constants, *epilogue, y)]
        tvm.runtime.load_module(f"{path}.so")["main"](*tensors)
        device.sync()
        return case.error(arguments, tensors[-1].numpy()), ""
    except RuntimeError as error:
        return None, cause_of(error)
