"""Values as people read them."""

from typing import Any

from tvm_sparse.errors import printable

# The status of a layer whose kernel nobody has timed here, and the kernel that ignores zeros.
PREDICTED, DENSE = "predicted", "dense"


def cell(value: Any) -> str:
    """One value of a table: four significant digits, ``-`` for None, names and counts as text."""
    if value is None:
        return "-"
    if isinstance(value, dict):
        return ", ".join(f"{name} ({count})" for name, count in value.items())
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return ", ".join(value)
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return printable(str(value))


def duration(seconds: float) -> str:
    """A time span in words, about: ``40 s``, ``3 min``, ``2.5 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def ratio(times: float) -> str:
    """How many times as fast, in two digits."""
    return f"{times:.0f}x" if times >= 10 else f"{times:.2g}x"


def removed_text(filters: int, channels: int) -> str:
    """What a compiled model has no more, ``3 filters and 1 input channel``; empty where nothing was taken out."""
    counts = {"filter": filters, "input channel": channels}
    return " and ".join(f"{count} {name}{'s' * (count > 1)}" for name, count in counts.items() if count)


def times_text(*times_us: float) -> str:
    """Times, each the one before improved, in the unit that suits the first: ``41.2 -> 17.3 ms``."""
    scale, unit = (1e3, "ms") if times_us[0] >= 1e3 else (1.0, "us")
    return f"{' -> '.join(f'{each / scale:.3g}' for each in times_us)} {unit}"
