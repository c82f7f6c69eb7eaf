"""What computes one layer of a model, and why."""

from dataclasses import dataclass, replace
from typing import Any

from tvm_sparse.conv.dtypes import FLOAT32
from tvm_sparse.conv.nchwc import NCHW, Layouts
from tvm_sparse.logs.record import TuningRecord
from tvm_sparse.runtime.compiled_model import COLUMNS
from tvm_sparse.schedules.lookup import precision_of
from tvm_sparse.scheduling.space import Decisions


@dataclass(frozen=True)
class Decision:
    """What computes one layer, and why, as a row of the decision table.

    `schedule` is the kernel's; `chosen` its decisions. Times are microseconds from the log, None where it has none;
    `expected_us` is an estimate. `record` is the log's; `transferred` if its kernel was not verified with this weight:
    it was made with another, or imported, or is a library's by default. `dense_record` is the log's best dense kernel,
    which stands in for one that turns out wrong. `is_open`: dense for want of a record. `predicted`: decisions where
    there is no record. Tensors are of type `dtype`. `joins`: the layer whose kernel computes this one too. `layouts`:
    which tensors lie in blocks of channels.
    """

    layer: str
    density: float
    structure: str
    schedule: str
    dense_time_us: float | None
    time_us: float | None
    reason: str
    record: TuningRecord | None = None
    dense_record: TuningRecord | None = None
    transferred: bool = False
    is_open: bool = False
    predicted: Decisions | None = None
    expected_us: float | None = None
    dtype: str = FLOAT32
    joins: str | None = None
    layouts: Layouts = NCHW

    @property
    def precision(self) -> str:
        """What the kernel computes in, and how tensors are stored."""
        return precision_of(self.schedule, self.dtype)

    @property
    def chosen(self) -> Decisions | None:
        """The decisions of the kernel; None for the schedule's defaults."""
        return self.record.chosen if self.record is not None else self.predicted

    def by_default(self, schedule: str, reason: str) -> "Decision":
        """The layer computed by the default decisions of `schedule`, alone, whatever was decided before."""
        unknown: dict[str, Any] = dict.fromkeys(("time_us", "record", "predicted", "expected_us", "joins"))
        return replace(self, **unknown, schedule=schedule, reason=reason, transferred=False, layouts=NCHW)

    def to_json(self) -> dict[str, Any]:
        """The row of the decision table."""
        row = {column: getattr(self, column) for column in COLUMNS}
        if self.layouts.has_blocks:
            row["reason"] += f"; {self.layouts}"
        return row
