"""Numbers that people can read."""

import pytest

from tvm_sparse.display.words import cell, duration


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (3, "3"),
        (0.099971, "0.09997"),
        (12.0, "12"),
        (123456.7, "123457"),
        ("a", "a"),
        ([1, 2], "[1, 2]"),
        (["a", "b"], "a, b"),
        ({"a": 2, "b": 1}, "a (2), b (1)"),
    ],
)
def test_cells(value, text):
    assert cell(value) == text


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0 s"), (89, "89 s"), (100, "2 min"), (9000, "2.5 h")])
def test_durations(seconds, text):
    assert duration(seconds) == text
