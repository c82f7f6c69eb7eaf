"""TVM's containers and constants as plain JSON values."""

from __future__ import annotations

from typing import Any


def plain(value: Any) -> Any:
    """`value` with maps as dicts, arrays as lists and integer or float constants as numbers.

    Raises
    ------
    TypeError
        Something else is in it.
    """
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if hasattr(value, "items"):
        return {str(key): plain(item) for key, item in value.items()}
    if hasattr(value, "__iter__"):
        return [plain(item) for item in value]
    if hasattr(value, "value"):
        return plain(value.value)
    raise TypeError(f"{type(value).__name__} is not a JSON value")
