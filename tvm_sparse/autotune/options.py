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

    `trials` candidates in all, known ones included, but not a library's, for which no compiler runs; `batch` at a time
    (None: 8, and on a GPU as many as are built at once); no batch is begun after `seconds` (None: no limit), not
    counting the time in which an interrupted run's trials are met again; `schedules` limits the search to schedules of
    these names (the dense baseline is always measured); `dense_trials` of compiled dense kernels are made (None: one of
    eight trials, and three at least).

    A search ends early, at the end of a batch, when `patience` sparse candidates in a row have gained less than
    2% (None: never). A rerun with these options ends there again.

    A search of a layer that takes a GPU's compilers long spends most trials on a proxy of it, see `proxy_layer`.

    Raises
    ------
    UsageError
        `seconds` is not above 0, `patience` is below 1, or `search` is neither of the two.
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
