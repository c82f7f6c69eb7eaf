"""Why a layer got its kernel, as sentences that name what it was compared with."""

from tvm_sparse.logs.ranking import Comparison
from tvm_sparse.schedules.lookup import is_exact, title_of


def why_sparse(schedule: str, found: Comparison, note: str) -> str:
    """Of a sparse kernel that is faster than its baseline."""
    others = "".join(_beside(name, quartiles.median / found.own.median) for name, quartiles in found.others.items())
    times = found.baseline.median / found.own.median
    return f"{schedule} is {times:.2f}x faster than {title_of(found.name)}{others}{_clock(found)}, {note}"


def why_dense(found: Comparison, more: float) -> str:
    """Of the baseline, where no sparse kernel is clearly faster; it was expected with `more` times the non-zeros."""
    time_us, baseline_us = found.own.median, found.baseline.median
    title = title_of(found.name)
    what = f"{title} is faster" if time_us >= baseline_us else f"their times overlap, so {title} is kept"
    expected = f" expected with {more:.3g} times the non-zeros" if more > 1 else ""
    return f"{what}: {baseline_us:.4g} us against {time_us:.4g} us{expected}{_clock(found)}"


def _beside(name: str, times: float) -> str:
    """One more comparison; what is faster is there only because it is not allowed."""
    if times >= 1:
        return f", {times:.2f}x than {title_of(name)}"
    why = "is not on this machine" if is_exact(name) else "--allow-tf32 allows it"
    return f" ({title_of(name)} is {1 / times:.2f}x faster, {why})"


def _clock(found: Comparison) -> str:
    return " with cold code" if found.is_cold else ""
