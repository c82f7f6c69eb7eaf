"""What computes a layer: a kernel of the log, one that an estimate promises, or a schedule by its own defaults."""

from dataclasses import dataclass

from tvm_sparse.logs.record import TuningRecord
from tvm_sparse.schedules.lookup import family_of
from tvm_sparse.scheduling.space import Decisions


@dataclass(frozen=True)
class Recorded:
    """The kernel of a record.

    * `record`: of the log; its schedule and decisions are the kernel's.
    * `time_us`: what the kernel takes here, by the log; None where the record is of another machine.
    * `is_verified`: whether the kernel was verified with the layer's own weight: false of one that was made with
      another.
    """

    record: TuningRecord
    time_us: float | None
    is_verified: bool

    @property
    def schedule(self) -> str:
        """The space of the kernel."""
        return self.record.schedule

    @property
    def decisions(self) -> Decisions | None:
        """The kernel's; None for the space's defaults."""
        return self.record.chosen

    @property
    def expected_us(self) -> float | None:
        """About what the kernel takes here, as far as anything is known."""
        return self.time_us


@dataclass(frozen=True)
class Predicted:
    """A kernel that nobody has timed or verified, which an estimate promises to be faster.

    * `schedule`, `decisions`: the space, and what is decided; None for the space's defaults.
    * `estimate_us`: what the kernel should take; None where only a ratio to others is known.
    * `time_us`: the same where it was derived from times, which a decision table shows.
    * `speedup`: how many times as fast as dense it should be; None where nobody asked.
    """

    schedule: str
    decisions: Decisions | None
    estimate_us: float | None = None
    time_us: float | None = None
    speedup: float | None = None

    record = None
    is_verified = False

    @property
    def expected_us(self) -> float | None:
        """About what the kernel takes here, as far as anything is known."""
        return self.time_us or self.estimate_us


@dataclass(frozen=True)
class Default:
    """A space by its own defaults; `time_us` is what its kernel took where others were timed beside it, else None."""

    schedule: str
    time_us: float | None = None

    decisions = None
    record = None

    @property
    def is_verified(self) -> bool:
        """Whether the kernel needs no verification: a library of others may refuse a convolution."""
        return not family_of(self.schedule).is_library

    @property
    def expected_us(self) -> float | None:
        """About what the kernel takes here, as far as anything is known."""
        return self.time_us


Choice = Recorded | Predicted | Default


def recorded_or_default(schedule: str, record: TuningRecord | None, time_us: float | None) -> Recorded | Default:
    """The kernel of `record`, of any weight, as dense ones serve all; without one the defaults of `schedule`."""
    return Default(schedule, time_us) if record is None else Recorded(record, time_us, record.error is not None)
