"""Whole numbers in text."""

from __future__ import annotations

# More digits than any size or count has; Python refuses to read thousands of them.
_MOST_DIGITS = 18


def whole_number(text: str) -> int | None:
    """0 or more, of up to 18 decimal digits; None where `text` is something else."""
    return int(text) if text.isdecimal() and len(text) <= _MOST_DIGITS else None
