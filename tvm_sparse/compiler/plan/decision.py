"""What computes one layer of a model, and why."""

from dataclasses import dataclass
from typing import Any

from tvm_sparse.compiler.plan.choice import Choice
from tvm_sparse.compiler.plan.reasons import Reason
from tvm_sparse.conv.dtypes import FLOAT32
from tvm_sparse.conv.nchwc import NCHW, Layouts
from tvm_sparse.display.words import PREDICTED
from tvm_sparse.logs.record import TuningRecord
from tvm_sparse.runtime.compiled_model import COLUMNS
from tvm_sparse.schedules.lookup import family_of, precision_of, word_of
from tvm_sparse.scheduling.space import Decisions


@dataclass(frozen=True)
class Decision:
    """What computes one layer, and why, as a row of the decision table.

    * `layer`, `density`, `structure`, `dtype`: the layer's name, its zeros and the type of its tensors.
    * `choice`: the kernel.
    * `reason`: why that one.
    * `dense_time_us`: what the best dense kernel takes by the log, None where it has no such time.
    * `dense_record`: the log's best dense kernel, which stands in for one that turns out wrong.
    * `joins`: the layer whose kernel computes this one too.
    * `layouts`: which tensors lie in blocks of channels.
    """

    layer: str
    density: float
    structure: str
    choice: Choice
    reason: Reason
    dense_time_us: float | None = None
    dense_record: TuningRecord | None = None
    dtype: str = FLOAT32
    joins: str | None = None
    layouts: Layouts = NCHW

    @property
    def schedule(self) -> str:
        """The space of the kernel."""
        return self.choice.schedule

    @property
    def chosen(self) -> Decisions | None:
        """The decisions of the kernel; None for the space's defaults."""
        return self.choice.decisions

    @property
    def record(self) -> TuningRecord | None:
        """The log's, of the kernel; None where it has none."""
        return self.choice.record

    @property
    def time_us(self) -> float | None:
        """What the kernel takes by the log, None where it has no such time."""
        return self.choice.time_us

    @property
    def transferred(self) -> bool:
        """Whether the kernel was not verified with this weight, so that it is before it is used."""
        return not self.choice.is_verified

    @property
    def precision(self) -> str:
        """What the kernel computes in, and how tensors are stored."""
        return precision_of(self.schedule, self.dtype)

    @property
    def kernel(self) -> str:
        """What the kernel does with the weight, in a word or two."""
        return word_of(self.schedule, self.structure)

    @property
    def status(self) -> str:
        """What the choice rests on, in a few words."""
        family = family_of(self.schedule)
        if family.of_zeros:
            return "all weights are zero"
        if family.is_dense:
            unpruned = "not pruned" if self.structure == "dense" else ""
            return unpruned or ("dense is faster" if self.dense_time_us is not None else "no gain expected")
        return "measured" if self.time_us is not None and self.record is not None else PREDICTED

    def to_json(self) -> dict[str, Any]:
        """The row of the decision table."""
        row = {column: getattr(self, column) for column in (*COLUMNS, "kernel", "status")}
        row["reason"] = str(self.reason)
        if self.layouts.has_blocks:
            row["reason"] += f"; {self.layouts}"
        return row
