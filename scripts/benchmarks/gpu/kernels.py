"""Our kernels for the operators of Table 2: which ones, building them side by side, calling them like a baseline."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import operators
from benchmarks.baselines import Baseline, Prepared
from benchmarks.gpu import code_size
from benchmarks.gpu.contenders import Kernels
from benchmarks.gpu.isolated_process import crew
from benchmarks.results import OURS
from tvm_sparse.conv.dtypes import FLOAT32
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.cudnn import packed_function
from tvm_sparse.errors import TvmSparseError, UsageError
from tvm_sparse.files.temporary import TemporaryFolder
from tvm_sparse.logs.tuning_log import TuningLog
from tvm_sparse.measure.serve import constants_path
from tvm_sparse.schedules.lookup import arithmetic_of, family_of, schedule_names, spaces_of
from tvm_sparse.scheduling.family import schedule_of
from tvm_sparse.target.fingerprint import fingerprint_of
from tvm_sparse.target.resolve import target_json

DEFAULT = "default decisions"


@dataclass(frozen=True)
class Choice:
    """A schedule and its decisions (None: the defaults), and why these."""

    schedule: str
    decisions: Any
    why: str


@dataclass(frozen=True)
class Wanted:
    """A kernel to be built for a convolution: the first of `choices` that can be. `family` as in the results."""

    family: str
    spec: ConvSpec
    weight: np.ndarray
    operator: int
    batch: int
    density: float
    choices: tuple[Choice, ...]

    @property
    def sparse(self) -> bool:
        """Whether its time depends on the zeros."""
        return not family_of(self.choices[0].schedule).is_dense


def wanted(
    case: tuple[int, int],
    densities: Sequence[float],
    seed: int,
    schedules: Sequence[str],
    log: TuningLog,
    target: Any,
    dtype: str = FLOAT32,
) -> list[Wanted]:
    """Our kernels for one operator and batch: the best that the log knows, else default decisions, at each density.

    `schedules` adds kernels of these schedules; a dense one serves all densities.
    """
    found = []
    operator, batch = case
    for density in densities:
        spec, weight = operators.spec(operator, batch, dtype), operators.weight(operator, density, seed, dtype)
        pattern = SparsityPattern.of(weight, spec.groups)
        choices = {OURS: _best(spec, pattern, log, target)}
        choices |= {f"{OURS} {name}": _of_schedule(name, spec, log, target) for name in schedules}
        for family in choices:
            each = Wanted(family, spec, weight, operator, batch, density, tuple(choices[family]))
            if each.sparse or density == densities[0]:
                found.append(each)
    return found


def _best(spec: ConvSpec, pattern: SparsityPattern, log: TuningLog, target: Any) -> list[Choice]:
    match = log.lookup(spec, pattern, fingerprint_of(target))
    choices = [Choice(match.record.schedule, match.record.chosen, match.note)] if match is not None else []
    # Another weight's decisions may not fit this one.
    if match is None or match.how != "values":
        hand_made = [
            name for name in schedule_names(target) if not (family_of(name).is_dense or family_of(name).is_generated)
        ]
        serving = {schedule_of(space.name) for space in spaces_of(spec, pattern, target, hand_made)[0]}
        choices += [Choice(name, None, DEFAULT) for name in hand_made if name in serving]
    return choices


def _of_schedule(name: str, spec: ConvSpec, log: TuningLog, target: Any) -> list[Choice]:
    if name not in schedule_names(target):
        raise UsageError("--schedules", "unknown schedule", name, ", ".join(schedule_names(target)))
    record = log.dense(spec, fingerprint_of(target)) if family_of(name).is_dense else None
    default = Choice(name, None, DEFAULT)
    if record is None or schedule_of(record.schedule) != name:
        return [default]
    return [Choice(record.schedule, record.chosen, "tuned"), default]


@contextmanager
def built(
    kernels: Sequence[Wanted], target: Any, workers: int, timeout_s: float
) -> Iterator[dict[tuple[int, int], Kernels]]:
    """Build all kernels side by side; by operator and batch.

    The libraries live in a temporary folder until the context ends; a kernel that cannot be built says why.
    """
    # Many non-zeros take longest to compile, so they start first.
    order = sorted(range(len(kernels)), key=lambda i: -kernels[i].density * kernels[i].spec.k)
    size = max(1, min(workers, len(kernels)))
    with TemporaryFolder() as folder:
        with crew(size) as ask, ThreadPoolExecutor(size) as threads:
            made = threads.map(lambda i: _build(kernels[i], ask, f"{folder}/kernel{i}", target, timeout_s), order)
            done = dict(zip(order, made, strict=True))
        by_case: dict[tuple[int, int], Kernels] = {}
        for number, kernel in enumerate(kernels):
            by_case.setdefault((kernel.operator, kernel.batch), []).append((kernel.density, done[number]))
        yield by_case


def _build(kernel: Wanted, ask: Callable[..., dict[str, Any]], path: str, target: Any, timeout_s: float) -> Baseline:
    spec, weight = kernel.spec, kernel.weight
    arrays, library = f"{path}-weight.npz", f"{path}.so"
    np.savez(arrays, weight=weight)
    made, failure = partial(Baseline, kernel.family, "", sparse=kernel.sparse), "no schedule serves it"
    for choice in kernel.choices:
        request = {
            "action": "build",
            "spec": spec.to_json(),
            "arrays": arrays,
            "target": target_json(target),
            "schedule": choice.schedule,
            "decisions": choice.decisions,
            "library": library,
        }
        try:
            answer = ask(request, timeout_s)
        except TvmSparseError as error:
            answer = {"failure": str(error)}
        if not answer:
            predicted_us = _predicted_us(spec, weight, target) if family_of(choice.schedule).is_folded else None
            load = partial(_load, library, f"{choice.schedule}, {choice.why}")
            return made(
                load,
                arithmetic=arithmetic_of(choice.schedule),
                code_bytes=code_size.code_bytes(Path(library)),
                predicted_us=predicted_us,
            )
        failure = answer.get("failure", f"{choice.schedule} took longer than {timeout_s:g} s to build")
    return made(partial(_fail, failure))


def _load(library: str, detail: str, spec: ConvSpec, weight: np.ndarray, device: Any) -> Prepared:
    """Load the library that was built for this convolution and weight."""
    import torch
    import tvm

    packed_function.register()
    function = tvm.runtime.load_module(library)["main"]
    with np.load(constants_path(library), allow_pickle=False) as made:
        arrays = [torch.from_numpy(made[name]).to(device, copy=True) for name in made]
    constants = list(map(tvm.runtime.from_dlpack, arrays))

    dtype = getattr(torch, spec.dtype)

    def bind(x: Any) -> Callable[[], Any]:
        y = torch.full(spec.output_shape, float("nan"), dtype=dtype, device=device)
        arguments = [tvm.runtime.from_dlpack(x), *constants, tvm.runtime.from_dlpack(y)]

        def call() -> Any:
            function(*arguments)
            return y

        return call

    weight_bytes = sum(array.nbytes for array in arrays)
    return Prepared(spec, weight, lambda x: x.to(dtype).contiguous(), bind, lambda y: y.float(), weight_bytes, detail)


def _fail(failure: str, *_: object) -> Prepared:
    raise RuntimeError(failure)


def _predicted_us(spec: ConvSpec, weight: np.ndarray, target: Any) -> float | None:
    """What `inspect` predicts for the best default decisions; None where there is no model of the machine."""
    found, _ = spaces_of(spec, SparsityPattern.of(weight, spec.groups), target)
    return min((each.estimate_us for each in found if each.estimate_us is not None), default=None)
