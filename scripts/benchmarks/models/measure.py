"""Rows of a network at a batch and a density, ours and torch's ways, compared with float64 and timed in turns."""

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.model_profile import profile, spans_us
from benchmarks.models import torch_models
from tvm_sparse.compiler.build_model import compile as compile_model
from tvm_sparse.conv.dtypes import FLOAT32
from tvm_sparse.errors import VerificationError
from tvm_sparse.runtime.batched_model import AnyModel
from tvm_sparse.schedules.lookup import arithmetic_of
from tvm_sparse.scheduling.family import is_in_parts

ROUNDS, MIN_ROUND_MS = 12, 20.0
# Largest difference from float64, as a share of the largest output, with which a row counts: float32 stays far below,
# a dozen layers in TF32 do not reach it.
MAX_RELATIVE_ERROR = {"float32": 1e-4, "tf32": 3e-2, "float16": 3e-2, "bfloat16": 2e-1}


@dataclass(frozen=True)
class Row:
    """Times of one call in microseconds, medians over rounds; of torch the better of both layouts.

    `pattern` is that of the zeros, `dtype` that of our tensors. `sum_of_log_us` adds up what the decisions' records
    say, `kernels_in_model_us` what the profiler says of the model's kernels. `max_relative_error` is ours, from
    float64, as a share of the largest output. `ours_exact`: no TF32.
    """

    model: str
    batch: int
    density: float
    pattern: str
    dtype: str
    ours_us: float
    torch_fp32_us: float
    torch_tf32_us: float
    torch_fp16_us: float
    torch_compile_tf32_us: float | None
    torch_eager_tf32_us: float
    compile_s: float
    cached_compile_s: float
    sum_of_log_us: float | None
    kernels_in_model_us: float
    max_relative_error: float
    ours_exact: bool
    ours_3xtf32: int
    memory_bytes: int | None
    layers: list[dict[str, Any]]

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


# How ours is compiled, by name: the options of `tvm_sparse.compile`.
VARIANTS: dict[str, dict[str, Any]] = {
    "exact": {},
    "tf32": {"allow_tf32": True},
    "float16": {"dtype": "float16"},
    "bfloat16": {"dtype": "bfloat16"},
}


def measure(
    name: str,
    batch: int,
    density: float,
    log: Path | None,
    variants: Sequence[str] = ("exact",),
    with_compile: bool = False,
    pattern: str = "unstructured",
) -> list[Row]:
    """The rows of one network whose zeros are of `pattern`: one for each of `variants`, all timed in the same turns.

    Raises
    ------
    VerificationError
        Our output differs from float64 by more than `MAX_RELATIVE_ERROR`.
    """
    module, x = torch_models.network(name, density, pattern=pattern), torch_models.images(batch)
    built = {each: _Built.of(module, x, log, VARIANTS[each]) for each in variants}
    module, x = module.cuda(), x.cuda()
    expected = torch_models.reference(module, x)
    errors = {each: made.error(x, expected, f"{name}, batch {batch}, {each}") for each, made in built.items()}
    calls = {each: made.on(x) for each, made in built.items()}
    calls |= torch_models.contenders(module, x, with_compile)
    medians = {each: statistics.median(values) for each, values in in_turns(calls).items()}

    def best(kind: str) -> float | None:
        return min((us for each, us in medians.items() if each.rpartition(" ")[0] == kind), default=None)

    rows = []
    for each, made in built.items():
        kernels = kernel_times_us(calls[each])
        logged = [row["time_us"] for row in made.model.report()]
        row = Row(
            model=name,
            batch=batch,
            density=density,
            pattern=pattern,
            dtype=made.dtype,
            ours_us=medians[each],
            torch_fp32_us=best("fp32") or 0.0,
            torch_tf32_us=best("tf32") or 0.0,
            torch_fp16_us=best("fp16") or 0.0,
            torch_compile_tf32_us=best("compile tf32"),
            torch_eager_tf32_us=best("eager tf32") or 0.0,
            compile_s=made.compile_s,
            cached_compile_s=made.cached_compile_s,
            sum_of_log_us=None if None in logged else sum(logged),
            kernels_in_model_us=sum(kernel["us"] for kernel in kernels),
            max_relative_error=errors[each],
            ours_exact=made.dtype == FLOAT32 and not made.allow_tf32,
            ours_3xtf32=sum(is_in_parts(arithmetic_of(row["schedule"])) for row in made.model.report()),
            memory_bytes=made.memory_bytes,
            layers=[*_decisions(made.model), *kernels],
        )
        rows.append(row)
    return rows


@dataclass(frozen=True)
class _Built:
    """A model of ours, and the seconds that compiling it took: with the kernels that earlier runs left, and again."""

    model: AnyModel
    dtype: str
    allow_tf32: bool
    compile_s: float
    cached_compile_s: float
    memory_bytes: int | None

    @classmethod
    def of(cls, module: Any, x: Any, log: Path | None, options: Mapping[str, Any]) -> "_Built":
        dtype, times_s = options.get("dtype", FLOAT32), []
        model: AnyModel | None = None
        for _ in range(2):
            # What the first one has taken is given back.
            model = None
            before = torch.cuda.mem_get_info()[0]
            start = time.perf_counter()
            model = compile_model(module, x, target="cuda", log=log, **options)
            times_s.append(time.perf_counter() - start)
        assert model is not None
        model(x.cuda().to(getattr(torch, dtype)))
        taken = before - torch.cuda.mem_get_info()[0]
        return cls(model, dtype, options.get("allow_tf32", False), times_s[0], times_s[1], taken)

    def on(self, x: Any) -> Callable[[], Any]:
        """A call with images `x`, in the model's type."""
        own = x.to(getattr(torch, self.dtype))
        return lambda: self.model(own)

    def error(self, x: Any, expected: Any, name: str) -> float:
        """Largest difference from float64, as a share of the largest output."""
        difference = (self.on(x)().double() - expected).abs().max()
        error = float(difference / expected.abs().max())
        allowed = MAX_RELATIVE_ERROR["tf32" if self.allow_tf32 else self.dtype]
        if not error <= allowed:
            raise VerificationError(name, "differs from float64", error, f"at most {allowed}")
        return error


def _decisions(compiled: AnyModel) -> list[dict[str, Any]]:
    return [{key: row[key] for key in ("layer", "schedule", "time_us")} for row in compiled.report()]


def in_turns(calls: Mapping[str, Callable[[], Any]]) -> dict[str, list[float]]:
    """Microseconds a call in each round; each round calls every contender as often as fills `MIN_ROUND_MS`."""
    numbers = {}
    for name, call in calls.items():
        _time_us(call, 3)
        numbers[name] = max(3, round(MIN_ROUND_MS * 1e3 / _time_us(call, 5)))
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            # The first call after another contender's finds its data and code displaced, the GPU's clock changed.
            _time_us(call, 1)
            found[name].append(_time_us(call, numbers[name]))
    return found


def _time_us(call: Callable[[], Any], number: int) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(number):
        call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3 / number


def kernel_times_us(call: Callable[[], Any], calls: int = 10) -> list[dict[str, Any]]:
    """Kernels of one call by the profiler: name, times it ran, microseconds of all of these together.

    A kernel that starts early counts from the end of the one that it waits for.
    """
    totals: dict[str, list[float]] = defaultdict(list)
    for name, us in spans_us(profile(call, calls, as_graph=False)):
        totals[name].append(us)
    rows = [{"kernel": name, "number": len(us) / calls, "us": sum(us) / calls} for name, us in totals.items()]
    return sorted(rows, key=lambda row: -row["us"])
