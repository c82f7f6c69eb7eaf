"""TuneOptions."""

from dataclasses import dataclass, field

from tvm_sparse.errors import UsageError
from tvm_sparse.measure.outcome import MeasureOptions

# Fewer trials than this are all spent on hand-made schedules, unless generated ones are named.
MIN_TRIALS_GENERATED = 32
# With 12, a search on a CPU ended with a kernel 67% slower, with 24 none lost more than 5% (docs/lab/search.md).
PATIENCE = 24


@dataclass(frozen=True)
class TuneOptions:
    """How to tune a layer.

    Parameters
    ----------
    trials
        Candidates in all, known ones included. Kernels of a library do not count.
    batch
        How many candidates are built before they are timed. None: 8, and on a GPU as many as are built at once.
    seconds
        After which no batch begins; None: no limit. Trials of an interrupted run that are met again take none of it.
    schedules
        Names of the schedules to search. The dense baseline is always measured.
    dense_trials
        Trials of compiled dense kernels. None: one of eight trials, and at least three.
    seed
        Of the search.
    measure
        Limits and repetitions of each measurement.
    patience
        The search ends early, at the end of a batch, when so many sparse candidates in a row have gained less than 2%;
        None: never. A rerun with these options ends there again.

    Raises
    ------
    UsageError
        `seconds` is not above 0, or `patience` is below 1.
    """

    trials: int = 64
    seed: int = 0
    batch: int | None = None
    dense_trials: int | None = None
    seconds: float | None = None
    schedules: tuple[str, ...] | None = None
    patience: int | None = PATIENCE
    measure: MeasureOptions = field(default_factory=MeasureOptions)

    def __post_init__(self) -> None:
        if self.seconds is not None and not self.seconds > 0:
            raise UsageError("seconds", "is no time limit", self.seconds, "a number above 0, or None for no limit")
        if self.patience is not None and not self.patience >= 1:
            raise UsageError("patience", "is no number of trials", self.patience, "1 or more, or None for all trials")
