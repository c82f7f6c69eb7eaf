"""Job: one convolution to tune, as plain values that go to another process or machine."""

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from tvm_sparse.autotune.options import TuneOptions
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.logs.record import TuningRecord
from tvm_sparse.measure import memory
from tvm_sparse.measure.outcome import MeasureOptions


@dataclass(frozen=True)
class Job:
    """What `tune_layer` is called with: a convolution, its float32 `weight` (K, C / groups, R, S), what is known."""

    spec: ConvSpec
    weight: np.ndarray
    options: TuneOptions
    known: tuple[TuningRecord, ...] = ()
    starts: tuple[TuningRecord, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """All but the weight as JSON values."""
        return {
            "spec": self.spec.to_json(),
            "options": asdict(self.options),
            "known": [record.to_line() for record in self.known],
            "starts": [record.to_line() for record in self.starts],
        }

    @classmethod
    def from_json(cls, data: dict[str, Any], weight: np.ndarray) -> "Job":
        """The job that `to_json` wrote; LogError where a record in it is damaged."""
        options = data["options"]
        schedules = None if options["schedules"] is None else tuple(options["schedules"])
        measure = MeasureOptions(**options["measure"])
        return cls(
            ConvSpec.from_json(data["spec"]),
            weight,
            TuneOptions(**{**options, "schedules": schedules, "measure": measure}),
            tuple(map(TuningRecord.from_line, data["known"])),
            tuple(map(TuningRecord.from_line, data["starts"])),
        )

    def shared(self, builders: int, tuners: int) -> "Job":
        """With so many builders, and the memory that is left to one of so many tuners of this machine."""
        limit = self.options.measure.memory_bytes
        if limit is None and tuners > 1:
            limit = memory.total_bytes() // tuners // (builders + 2)
        measure = replace(self.options.measure, builders=builders, memory_bytes=limit)
        return replace(self, options=replace(self.options, measure=measure))
