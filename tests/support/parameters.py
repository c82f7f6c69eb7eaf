"""Values of a test's parameters of which most are for `pytest -m exhaustive`."""

import pytest


def sampled(values, sample):
    """All `values`, those outside `sample` marked as exhaustive."""
    assert set(sample) <= set(values)
    return [each if each in sample else pytest.param(*_as_tuple(each), marks=pytest.mark.exhaustive) for each in values]


def random_seeds(few, count):
    """Parameter `seeds` of a test: the `few` that between them have all that it looks for, and `count` of them."""
    every = pytest.param(range(count), marks=pytest.mark.exhaustive, id="all")
    return pytest.mark.parametrize("seeds", [pytest.param(few, id="few"), every])


def _as_tuple(value):
    return value if isinstance(value, tuple) else (value,)
