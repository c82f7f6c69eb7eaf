"""Rows of one network, ours and torch's ways: built, compared with float64 and timed in turns, in this process."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from benchmarks.models import torch_models
from benchmarks.models.rivals import Call, call_of
from benchmarks.models.row import VARIANTS, Case, Rival, Row, Way, fastest_us
from benchmarks.models.turns import in_turns, kernel_times_us
from tvm_sparse.compiler.build_model import compile as compile_model
from tvm_sparse.conv.dtypes import FLOAT32
from tvm_sparse.errors import VerificationError, first_line
from tvm_sparse.runtime.multi_shape_model import AnyModel
from tvm_sparse.schedules.lookup import arithmetic_of
from tvm_sparse.scheduling.family import is_in_parts

# Largest difference from float64, as a share of the largest output, with which ours or a way of torch counts: float32
# stays far below, a dozen layers in TF32 do not reach it.
MAX_RELATIVE_ERROR = {"float32": 1e-4, "tf32": 3e-2, "float16": 3e-2, "bfloat16": 2e-1, "fp32": 1e-4, "fp16": 3e-2}
NO_TIME = "not begun, the time was spent"


class Bench:
    """A case whose variants of ours are built; `doing` is called with a rival's name before it is made, "" after that.

    `failures` say why rivals, by name, need not be tried.
    """

    def __init__(self, case: Case, failures: Mapping[str, str], doing: Callable[[str], None]):
        self._case, self._doing = case, doing
        self._rivals = {each: Rival(each, failure=failures.get(each.name, "")) for each in case.ways}
        self._on_gpu = device_of(case).type == "cuda"
        module = torch_models.network(case.model, case.density, pattern=case.pattern)
        x = torch_models.images(case.model, case.batch, case.image)
        self._built = {each: _Built.of(module, x, case, VARIANTS[each]) for each in case.variants}
        self._module, self._x = module.to(device_of(case)), x.to(device_of(case))

    def fill_caches(self) -> None:
        """Compile what is quickly compiled, so that torch's caches have it when the case has the machine for itself."""
        for way in self._case.ways:
            if way.is_quick:
                self._made(way)
        torch._dynamo.reset()
        if self._on_gpu:
            torch.cuda.empty_cache()

    def rows(self) -> list[Row]:
        """A row for each variant, all timed in the same turns.

        Raises
        ------
        VerificationError
            Our output differs from float64 by more than `MAX_RELATIVE_ERROR`.
        """
        expected = torch_models.reference(self._module, self._x)
        # cuDNN chooses algorithms by timing them, now that nobody disturbs it.
        torch.backends.cudnn.benchmark = True
        name = self._case.name
        errors = {each: made.error(self._x, expected, f"{name}, {each}") for each, made in self._built.items()}
        calls: dict[Any, Call] = {each: made.on(self._x) for each, made in self._built.items()}
        calls |= {way: call for way in self._case.ways if (call := self._compared(way, expected)) is not None}
        times_us = {each: statistics.median(us) for each, us in in_turns(calls, self._on_gpu).items()}
        rivals = [replace(each, time_us=times_us.get(way)) for way, each in self._rivals.items()]
        return [self._row(each, times_us[each], calls[each], errors[each], rivals) for each in self._built]

    def _compared(self, way: Way, expected: Any) -> Call | None:
        """A call of `way`, where that can be made and is right."""
        call = self._made(way)
        if call is None:
            return None
        error, allowed = _error(call(), expected), MAX_RELATIVE_ERROR[way.precision]
        wrong = "" if error <= allowed else f"differs from float64 by {error:.1e}, allowed: {allowed:g}"
        self._rivals[way] = replace(self._rivals[way], max_relative_error=error, failure=wrong)
        return None if wrong else call

    def _made(self, way: Way) -> Call | None:
        rival = self._rivals[way]
        if way.is_compiled and rival.build_s is None and not rival.failure and time.monotonic() > self._case.until_s:
            rival = self._rivals[way] = replace(rival, failure=NO_TIME)
        if rival.failure:
            return None
        self._doing(way.name)
        start_s = time.perf_counter()
        try:
            call = call_of(way, self._module, self._x)
            self._synchronize()
        except Exception as error:  # torch's compilers and drivers raise anything
            self._rivals[way] = replace(rival, failure=first_line(error))
            # Some errors leave a GPU that does nothing any more; then this process ends here.
            self._synchronize()
            call = None
        else:
            build_s = time.perf_counter() - start_s
            # A second time finds the caches full.
            self._rivals[way] = replace(rival, build_s=rival.build_s or build_s)
        self._doing("")
        return call

    def _synchronize(self) -> None:
        if self._on_gpu:
            torch.cuda.synchronize()

    def _row(self, variant: str, ours_us: float, call: Call, error: float, rivals: list[Rival]) -> Row:
        case, made = self._case, self._built[variant]
        report = made.model.report()
        kernels = kernel_times_us(call) if self._on_gpu else []
        logged = [row["time_us"] for row in report]
        return Row(
            model=case.model,
            batch=case.batch,
            density=case.density,
            pattern=case.pattern,
            dtype=made.dtype,
            ours_us=ours_us,
            torch_us=fastest_us(rivals),
            compile_s=made.compile_s,
            cached_compile_s=made.cached_compile_s,
            sum_of_log_us=None if None in logged else sum(logged),
            kernels_in_model_us=sum(kernel["us"] for kernel in kernels),
            max_relative_error=error,
            ours_exact=made.dtype == FLOAT32 and not made.allow_tf32,
            ours_3xtf32=sum(is_in_parts(arithmetic_of(row["schedule"])) for row in report),
            memory_bytes=made.memory_bytes,
            rivals=rivals,
            layers=[{key: row[key] for key in ("layer", "schedule", "time_us")} for row in report] + kernels,
        )


@dataclass(frozen=True)
class _Built:
    """A model of ours, and the seconds that compiling it took: with the kernels that earlier runs left, and again."""

    model: AnyModel
    dtype: str
    allow_tf32: bool
    compile_s: float
    cached_compile_s: float | None
    memory_bytes: int | None

    @classmethod
    def of(cls, module: Any, x: Any, case: Case, options: Mapping[str, Any]) -> "_Built":
        dtype, times_s = options.get("dtype", FLOAT32), []
        model: AnyModel | None = None
        for _ in range(1 + case.again):
            # What the first one has taken is given back.
            model = None
            before = _free_bytes(case)
            start_s = time.perf_counter()
            model = compile_model(module, x, target=case.target, log=case.log, **options)
            times_s.append(time.perf_counter() - start_s)
        assert model is not None
        model(x.to(device_of(case), getattr(torch, dtype)))
        memory_bytes = None if case.side_by_side else before - _free_bytes(case)
        again_s = times_s[1] if case.again else None
        return cls(model, dtype, options.get("allow_tf32", False), times_s[0], again_s, memory_bytes)

    def on(self, x: Any) -> Call:
        """A call with images `x`, in the model's type."""
        own = x.to(getattr(torch, self.dtype))
        return lambda: self.model(own)

    def error(self, x: Any, expected: Any, name: str) -> float:
        """That of the output; VerificationError where it is too large."""
        error = _error(self.on(x)(), expected)
        allowed = MAX_RELATIVE_ERROR["tf32" if self.allow_tf32 else self.dtype]
        if not error <= allowed:
            raise VerificationError(name, "differs from float64", error, f"at most {allowed}")
        return error


def device_of(case: Case) -> Any:
    """Where `case` computes."""
    return torch.device("cuda" if case.target == "cuda" else "cpu")


def _error(found: Any, expected: Any) -> float:
    """Largest difference from float64, as a share of the largest output."""
    return float((found.detach().double() - expected).abs().max() / expected.abs().max())


def _free_bytes(case: Case) -> int:
    return torch.cuda.mem_get_info()[0] if device_of(case).type == "cuda" else 0
