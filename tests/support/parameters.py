"""Values of a test's parameters of which most are for `pytest -m exhaustive`."""

from itertools import product

import pytest


def sampled(values, sample):
    """All `values`, those outside `sample` marked as exhaustive."""
    assert set(sample) <= set(values)
    return [each if each in sample else pytest.param(*_as_tuple(each), marks=pytest.mark.exhaustive) for each in values]


def by_turns(first, second, period):
    """Pairs of `first` and `second`, each `period`-th of a row of them in the default run, further on in each row."""
    pairs = [*product(enumerate(first), enumerate(second))]
    chosen = [(one, other) for (row, one), (column, other) in pairs if (row + column) % period == 0]
    return sampled([(one, other) for (_, one), (_, other) in pairs], chosen)


def random_seeds(few, count):
    """Parameter `seeds` of a test: the `few` that between them have all that it looks for, and `count` of them."""
    every = pytest.param(range(count), marks=pytest.mark.exhaustive, id="all")
    return pytest.mark.parametrize("seeds", [pytest.param(few, id="few"), every])


def _as_tuple(value):
    return value if isinstance(value, tuple) else (value,)
