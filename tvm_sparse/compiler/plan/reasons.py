"""Why a layer got its kernel: the kinds of reasons, and the sentences in which people are told."""

from dataclasses import dataclass
from enum import Enum, auto

from tvm_sparse.logs.ranking import Comparison
from tvm_sparse.logs.record import TuningRecord
from tvm_sparse.schedules.lookup import is_exact, title_of

# What is to be known of a prediction.
_MEASURE = "not measured here"


class Kind(Enum):
    """What a choice rests on."""

    # The layer is its bias.
    ALL_ZERO = auto()
    # The log decides nothing, so that the layer is dense unless something is predicted.
    NO_RECORD = auto()
    # A record's kernel beat its baseline; the baseline beat it; their times overlap, so that the baseline stays.
    FASTER = auto()
    SLOWER = auto()
    OVERLAP = auto()
    # A kernel won with another epilogue, or on another machine.
    NEAR = auto()
    # An estimate promises a kernel to be faster.
    PREDICTED = auto()
    # Conversions between layouts are saved.
    IN_NHWC = auto()
    # Another layer's kernel computes this one too.
    JOINED = auto()
    # What was chosen cannot be used, or may not.
    DENSE_INSTEAD = auto()
    # Nothing was compared.
    GIVEN = auto()


# Those of layers that measurements may decide otherwise.
UNMEASURED = frozenset({Kind.NO_RECORD, Kind.NEAR, Kind.PREDICTED, Kind.JOINED})


@dataclass(frozen=True)
class Reason:
    """Of a kind, and as a sentence that names what the kernel was compared with."""

    kind: Kind
    sentence: str

    def __str__(self) -> str:
        return self.sentence

    def and_computes(self, expansion: str) -> "Reason":
        """The same of a kernel that computes another layer too."""
        return Reason(self.kind, f"{self.sentence}; its kernel computes {expansion} too")


ALL_ZERO = Reason(Kind.ALL_ZERO, "all weights are zero: the layer is its bias")
NO_LOG = Reason(Kind.NO_RECORD, "no tuning log was given")
DENSE_PRODUCT = Reason(Kind.GIVEN, "a dense linear layer of many images")
ASKED_FOR = Reason(Kind.GIVEN, "--schedule asks for it")


def no_record(ignored: list[str]) -> Reason:
    """No record of a shape serves; `ignored` says why those that there are do not."""
    return Reason(Kind.NO_RECORD, "; ".join(ignored) or "no record for this shape")


def does_not_fit(record: TuningRecord) -> Reason:
    """The nearest record's kernel, grown to the layer's non-zeros, would not run."""
    return Reason(Kind.NO_RECORD, f"no kernel that was tuned for density {record.pattern.density:.3g} fits")


def too_far(record: TuningRecord) -> Reason:
    """The nearest record has far fewer non-zeros."""
    return Reason(Kind.NO_RECORD, f"no record for so many non-zeros, only for density {record.pattern.density:.2g}")


def not_compared(record: TuningRecord) -> Reason:
    """The record has no baseline that counts."""
    return Reason(Kind.NO_RECORD, f"dense was never timed beside {record.schedule}")


def faster(schedule: str, found: Comparison, note: str) -> Reason:
    """A sparse kernel is faster than its baseline."""
    others = "".join(_beside(name, quartiles.median / found.own.median) for name, quartiles in found.others.items())
    return Reason(
        Kind.FASTER,
        f"{schedule} is {_times(found):.2f}x faster than {title_of(found.name)}{others}{_clock(found)}, {note}",
    )


def not_faster(found: Comparison, more: float) -> Reason:
    """No sparse kernel is clearly faster than the baseline; it was expected with `more` times the non-zeros."""
    time_us, baseline_us = found.own.median, found.baseline.median
    kind, title = Kind.SLOWER if time_us >= baseline_us else Kind.OVERLAP, title_of(found.name)
    what = f"{title} is faster" if kind is Kind.SLOWER else f"their times overlap, so {title} is kept"
    expected = f" expected with {more:.3g} times the non-zeros" if more > 1 else ""
    return Reason(kind, f"{what}: {baseline_us:.4g} us against {time_us:.4g} us{expected}{_clock(found)}")


def was_faster(schedule: str, found: Comparison, place: str, source: str) -> Reason:
    """The kernel of a near record, which won at `place`; `source` is its log."""
    won = f"{schedule} was {_times(found):.2f}x faster than {title_of(found.name)} {place}"
    return Reason(Kind.NEAR, f"predicted: {won}{source}; {_MEASURE}")


def predicted(schedule: str, speedup: float) -> Reason:
    """An estimate promises a kernel."""
    return Reason(Kind.PREDICTED, f"predicted: {schedule} should be about {speedup:.2g}x faster than dense; {_MEASURE}")


def pools_faster(schedule: str, times: float, alone: str, note: str) -> Reason:
    """A record's kernel that computes a pool too is faster than the layer's own and the pool."""
    return Reason(Kind.FASTER, f"{schedule} is {times:.2f}x faster than {alone} and the max pool behind it, {note}")


def pools_as_predicted(schedule: str, alone: str) -> Reason:
    """The same by an estimate."""
    compared = f"{schedule} should be faster than {alone} and the max pool behind it"
    return Reason(Kind.PREDICTED, f"predicted: {compared}; {_MEASURE}")


def joined(layer: str) -> Reason:
    """The kernel of the layer behind it computes an expansion too."""
    promise = "should be faster, as what it computes stays in the caches"
    return Reason(Kind.JOINED, f"predicted: dense in one kernel with {layer} {promise}")


def in_one_kernel(layer: str, time_us: float, apart_us: float, is_measured: bool) -> Reason:
    """The kernel of the last of three layers computes the others."""
    kind, before = (Kind.FASTER, "measured") if is_measured else (Kind.JOINED, "predicted")
    times = f"about {time_us:.4g} us instead of {apart_us:.4g} of the three"
    return Reason(kind, f"{before}: in one kernel with {layer}, as nothing between goes to memory: {times}")


def in_nhwc(schedule: str, nhwc_us: float, is_measured: bool, other: str, other_us: float) -> Reason:
    """What a layer takes between neighbours in the same layout, against `other` in NCHW."""
    how = "measured" if is_measured else "estimated"
    times = f"about {nhwc_us:.4g} us without conversions ({how}), against {other_us:.4g} us of {title_of(other)}"
    return Reason(Kind.IN_NHWC, f"{title_of(schedule)} in NHWC, like its neighbours: {times}")


def dense_because(why: str) -> Reason:
    """What was chosen gives way to a dense kernel."""
    return Reason(Kind.DENSE_INSTEAD, f"dense, because {why}")


def _times(found: Comparison) -> float:
    return found.baseline.median / found.own.median


def _beside(name: str, times: float) -> str:
    """One more comparison; what is faster is there only because it is not allowed."""
    if times >= 1:
        return f", {times:.2f}x than {title_of(name)}"
    why = "is not on this machine" if is_exact(name) else "--allow-tf32 allows it"
    return f" ({title_of(name)} is {1 / times:.2f}x faster, {why})"


def _clock(found: Comparison) -> str:
    return " with cold code" if found.is_cold else ""
