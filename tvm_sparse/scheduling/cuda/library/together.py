"""Arithmetic on a number, which stays one of Python's, or on arrays of them, place by place.

Estimates of tilings are written once with it, for one and for thousands together.
"""

from functools import reduce
from typing import Any

import numpy as np


def largest(*values: Any) -> Any:
    """The largest of all."""
    return reduce(np.maximum, values) if _has_arrays(values) else max(values)


def smallest(*values: Any) -> Any:
    """The smallest of all."""
    return reduce(np.minimum, values) if _has_arrays(values) else min(values)


def either(condition: Any, yes: Any, no: Any) -> Any:
    """`yes` where the condition holds, else `no`."""
    return np.where(condition, yes, no) if _has_arrays((condition, yes, no)) else yes if condition else no


def rounded_up(value: Any) -> Any:
    """The next integer."""
    return -(-value // 1)


def _has_arrays(values: tuple[Any, ...]) -> bool:
    return any(isinstance(each, np.ndarray) for each in values)
