"""JSON as its standard has it (RFC 8259).

Python's reader also takes numbers that are none, and has errors of its own for what is nested too deeply.
"""

from __future__ import annotations

import json
import math
from typing import Any


def loads(text: str | bytes) -> Any:
    """The value of a JSON text; ValueError where it is none, or nested too deeply, or a number is not finite."""
    try:
        return json.loads(text, parse_float=finite, parse_constant=finite)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def finite(text: str) -> float:
    """Reads a number; Python would take ``NaN``, ``Infinity`` and ``1e999`` too."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]} is not a finite number")
    return value
