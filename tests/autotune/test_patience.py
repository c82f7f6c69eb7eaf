"""When a search has had enough, on made-up times."""

import math

import pytest

from tvm_sparse.autotune.search.patience import Patience


def made(times, costs=None, limit=3):
    """How many candidates a search makes of these."""
    patience = Patience(limit)
    for number, (time_us, cost_us) in enumerate(zip(times, costs or times, strict=True)):
        if patience.is_over:
            return number
        patience.learn(time_us, cost_us)
    return len(times)


@pytest.mark.parametrize(
    ("times", "end"),
    [
        ([10, 11, 12, 13, 5], 4),
        ([10, 11, 12, 5, 6, 6, 6, 1], 7),
        # Less than 2%, and less than 2% each, but more in all.
        ([10, 9.9, 9.85, 9.82, 5], 4),
        ([10, 9.9, 9.79, 9.75, 9.7, 9.6, 5], 6),
        # Failures gain nothing; before the first that runs there is nothing to gain on.
        ([10, math.inf, math.inf, math.inf, 5], 4),
        ([math.inf] * 9 + [10, 10, 10, 10, 5], 13),
    ],
)
def test_candidates_in_a_row_that_gain_nothing_end_it(times, end):
    assert made(times) == end


def test_a_gain_beside_the_dense_kernel_is_one():
    """The machine became slower: a faster kernel takes as long as the best did, but its ratio says what it is."""
    assert made([10, 11, 12, 10, 11, 12], [10, 11, 12, 5, 6, 6]) == 6
    assert made([10, 11, 12, 5, 11, 12], [10, 11, 12, 10, 11, 12]) == 6


def test_without_a_limit_it_goes_on():
    assert made([10] * 50, limit=None) == 50
