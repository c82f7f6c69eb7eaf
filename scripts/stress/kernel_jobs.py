"""Kernels to check, built and run in worker processes: one that crashes or hangs is a failure like any other."""

import random
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import tvm
from random_convolutions import (
    Case,
    call,
    random_case,
    random_data_case,
    random_first_case,
    random_half_case,
    random_kernel,
    random_linear_case,
    random_plane_case,
    random_pooled_case,
    random_quad_case,
    random_slice_case,
    random_taps_case,
    random_tiles_case,
    random_vector_case,
    random_zero_case,
)

from benchmarks.gpu.isolated_process import crew, serving
from tvm_sparse.codegen import lowering
from tvm_sparse.conv import reference
from tvm_sparse.conv.random_weights import normal_weight
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.cudnn import packed_function
from tvm_sparse.errors import TvmSparseError
from tvm_sparse.measure.serve import Action, constants_path
from tvm_sparse.measure.worker import Worker
from tvm_sparse.schedules.lookup import arithmetic_of, family_of, spaces_of
from tvm_sparse.scheduling.family import schedule_of
from tvm_sparse.scheduling.kernel import apply_decisions
from tvm_sparse.target.resolve import resolve_target

# Convolutions of real networks, larger than the random ones.
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
# Of the weights of convolutions that are not random.
DENSITY = 0.1
# Every third random convolution on a GPU has so many images, so that thread blocks may outnumber multiprocessors: these
# have other code.
MANY = 40
# Of so many random convolutions one is a linear layer.
LINEAR = 8
# Schedules for layers or zeros of their own, without their target, and what makes a case of them.
OWN_CASES = {
    "bias": random_zero_case,
    "data": random_data_case,
    "first": random_first_case,
    "folded_half": random_half_case,
    "vector": random_vector_case,
    "winograd": random_taps_case,
    "slice": random_slice_case,
    "plane": random_plane_case,
    "quad": random_quad_case,
    "pooled": random_pooled_case,
    "linear_tensor": random_tiles_case,
}
# That a kernel may take to be built, or to run.
TIMEOUT_S = 300
WORKER = serving(__file__)
# What a kernel that is wrong or cannot be built may raise.
ERRORS = (TvmSparseError, RuntimeError, ValueError, TypeError)
# How one kernel went: `schedule`, `index`, `space` and `worst`, its largest error as a fraction of the bound; where it
# failed its `case` and `cause`, where its schedule does not apply `not_served`.
Result = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """One kernel of a schedule, ``name`` or ``name:variant``; of one for filters that share their zeros, a weight
    that has some.

    It computes case `index` of `seed`, which is always the same, of so many `images` where they are given, with default
    decisions where the index is even and random ones where it is odd; or `spec`, with decisions number `start` of those
    that a search begins with, of which 0 are the default.
    """

    schedule: str
    seed: int = 0
    index: int = 0
    images: int | None = None
    spec: ConvSpec | None = None
    start: int = 0

    def case(self) -> Case:
        """The convolution, its weight and its inputs' seed."""
        if self.spec is not None:
            weight = normal_weight(self.spec, DENSITY, self.seed)
            return Case(self.spec, weight, self.seed, integers=False, pools=family_of(self.schedule).computes_pool)
        of = random_linear_case if self.index % LINEAR == LINEAR - 1 else random_case
        of = OWN_CASES.get(schedule_of(self.schedule).rpartition("_")[0], of)
        case = of(random.Random(f"case {self.seed} {self.index}").choice)
        return replace(case, spec=replace(case.spec, n=self.images or case.spec.n))


def random_jobs(numbers: Sequence[int], seed: int, schedules: Sequence[str], on_gpu: bool = True) -> list[Job]:
    """The random convolutions of these numbers, each with every schedule."""
    return [Job(name, seed, i, MANY if on_gpu and i % 3 == 0 else None) for i in numbers for name in schedules]


def cuda_jobs(specs: Sequence[ConvSpec], schedules: Sequence[str], every_start: bool = False) -> list[Job]:
    """Every variant of every schedule for each of `specs`, with default decisions or all that a search begins with."""
    jobs = []
    for spec in specs:
        pattern = SparsityPattern.of(Job("", spec=spec).case().weight)
        found, _ = spaces_of(spec, pattern, resolve_target("cuda"), list(schedules))
        jobs += [Job(s.name, spec=spec, start=i) for s in found for i in range(len(s.starts()) if every_start else 1)]
    return jobs


def check(jobs: Sequence[Job], workers: int, target: str = "cuda") -> Iterator[Result]:
    """Build all jobs side by side and run each, one at a time, as soon as it is built."""
    runner = Worker({}, command=WORKER)
    with tempfile.TemporaryDirectory() as folder:
        for job, (request, found) in zip(jobs, built(jobs, workers, target, folder), strict=True):
            result = {"schedule": schedule_of(job.schedule), "index": job.index, **found}
            if found.keys() == {"space"}:
                result |= judged(runner.ask({**request, **found, "action": "run"}, TIMEOUT_S))
            if "cause" in result:
                result["case"] = repr(job.case())
                # A CUDA context may be broken.
                runner.stop()
            yield result
    runner.stop()


def built(jobs: Sequence[Job], workers: int, target: str, folder: str) -> Iterator[tuple[dict[str, Any], Result]]:
    """What asks for each job's kernel, and its result so far; if that is a `space` alone, the library is built."""
    requests = [
        {"action": "build", "job": asdict(job), "target": target, "library": f"{folder}/{i}.so"}
        for i, job in enumerate(jobs)
    ]
    with crew(workers, WORKER) as ask, ThreadPoolExecutor(workers) as threads:
        answers = threads.map(lambda request: judged(ask(request, TIMEOUT_S)), requests)
        yield from zip(requests, answers, strict=True)


def judged(answer: dict[str, Any]) -> Result:
    """A worker's answer as part of a result: with a cause where it gave none, or the kernel is wrong."""
    if "timeout" in answer:
        return {"cause": f"took longer than {answer['timeout']} s"}
    if "failure" in answer:
        return {"cause": answer["failure"]}
    return answer if answer.get("worst", 0) <= 1 else {"cause": f"{answer['worst']:.3g} times the error bound"}


def build(request: dict[str, Any]) -> Result:
    """A worker's build: the `space`, and the `cause` where it fails; or why the job is `not_served`."""
    job, target = _job(request), resolve_target(request["target"])
    case, (name, _, variant) = job.case(), job.schedule.partition(":")
    found, reasons = spaces_of(case.spec, SparsityPattern.of(case.weight), target, [name])
    found = [each for each in found if variant in ("", each.variant)]
    if not found:
        return {"not_served": reasons.get(name, "it has no such variant")}
    choose = random.Random(f"kernel {job.seed} {job.index} {name}").choice
    space = choose(found) if job.spec is None else found[0]
    try:
        if job.spec is None and job.index % 2 == 1:
            kernel = random_kernel(space, case.weight, choose)
        else:
            kernel = apply_decisions(space, case.weight, space.starts()[job.start] if job.start else None)
        lowering.build(kernel.func, target).export_library(request["library"])
    except ERRORS as error:
        return {"space": space.name, "cause": f"{type(error).__name__}: {str(error).strip()[-500:]}"}
    np.savez(constants_path(request["library"]), *kernel.constants)
    return {"space": space.name}


def run(request: dict[str, Any]) -> Result:
    """A worker's run: the `worst` error, the output filled with NaN before."""
    case, device = _job(request).case(), tvm.cuda(0) if request["target"] == "cuda" else tvm.cpu(0)
    arguments = reference.random_arguments(case.spec, case.seed, case.integers)
    with np.load(constants_path(request["library"]), allow_pickle=False) as made:
        constants = [made[name] for name in made]
    # In a model the runtime does it.
    packed_function.register()
    y = call(tvm.runtime.load_module(request["library"]), case.spec, arguments, constants, device, case.pools)
    # The space of a schedule is chosen as a kernel is built.
    name = request.get("space") or _job(request).schedule
    return {"worst": case.error(arguments, y, arithmetic_of(name))}


def _job(request: dict[str, Any]) -> Job:
    data = request["job"]
    return Job(**{**data, "spec": data["spec"] and ConvSpec.from_json(data["spec"])})


def actions() -> dict[str, Action]:
    """What a worker process does."""
    return {"build": build, "run": run}
