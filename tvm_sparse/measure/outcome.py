"""What is measured, how, and what became of it."""

from dataclasses import dataclass, field
from typing import Any, Literal

from tvm_sparse.measure.call_row import MODEL_BYTES
from tvm_sparse.target.cpu import available_cores

Status = Literal["ok", "build_failed", "run_failed", "timeout", "wrong", "rejected"]


@dataclass(frozen=True)
class MeasureOptions:
    """Limits and repetitions of a measurement.

    Each of `repeats` measurements lasts at least `min_repeat_ms`; a build may take `build_timeout_s`, a run
    `run_timeout_s`. Each of the `builders` processes that build side by side, compilers included, and the one that runs
    may take `memory_bytes`; None: an equal share of this machine's memory. Layers whose CUDA kernels are compiled in
    parts have fewer builders, and as many compilers in all. `cold`: times with cold code are taken too, where
    `call_row.is_timed_cold`; `model_bytes` is what lies between two calls of a kernel there.
    """

    repeats: int = 5
    min_repeat_ms: float = 5.0
    build_timeout_s: float = 90.0
    run_timeout_s: float = 60.0
    memory_bytes: int | None = None
    builders: int = field(default_factory=available_cores)
    cold: bool = True
    model_bytes: int = MODEL_BYTES


@dataclass(frozen=True)
class Candidate:
    """A schedule name and the decisions to build it with: by name, or a trace; None for its defaults."""

    schedule: str
    decisions: dict[str, Any] | list[Any] | None = None


@dataclass(frozen=True)
class Outcome:
    """What became of a candidate: status and cause as in a tuning record, times in us, error in bounds.

    Times with cold code are None where they were not taken. `unconverted_times_us` and `unconverted_cold_times_us` are
    those of the same kernel without conversions of its tensors, where it has some. `library_times_us` and
    `library_cold_times_us` are those of further dense kernels, by schedule.
    """

    status: Status
    cause: str = ""
    times_us: tuple[float, ...] = ()
    dense_times_us: tuple[float, ...] = ()
    error: float | None = None
    cold_times_us: tuple[float, ...] | None = None
    dense_cold_times_us: tuple[float, ...] | None = None
    unconverted_times_us: tuple[float, ...] = ()
    unconverted_cold_times_us: tuple[float, ...] = ()
    library_times_us: dict[str, list[float]] = field(default_factory=dict)
    library_cold_times_us: dict[str, list[float]] = field(default_factory=dict)
