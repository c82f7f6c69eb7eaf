"""Copies spread over threads: each is made by one thread, and addresses are shared where that is cheaper."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvm_sparse.scheduling.cuda.folded.thread_layout import spread

SIZES = st.integers(1, 12)


@given(st.lists(SIZES, min_size=2, max_size=4).map(tuple), st.integers(0, 2), st.integers(1, 96), st.integers(1, 64))
def test_every_copy_is_made_once(extents, free, threads, k_tiles):
    """By walking through what each thread copies."""
    found = spread(extents, free, threads, k_tiles)
    outer = len(found.groups)
    assert outer <= free and (found.rounds == 1 or math.prod(found.groups) == 1)
    laid = (*found.groups, *extents[outer:])
    steps = [range(0, extent, group) for extent, group in zip(extents, found.groups, strict=False)]
    rest = [range(1)] * (len(extents) - outer)
    made = []
    for thread, turn in itertools.product(range(threads), range(found.rounds)):
        number = turn * threads + thread
        if number >= math.prod(laid):
            continue
        place = []
        for extent in reversed(laid):
            number, index = divmod(number, extent)
            place.insert(0, index)
        made += [tuple(map(sum, zip(place, step, strict=True))) for step in itertools.product(*steps, *rest)]
    assert sorted(made) == sorted(itertools.product(*map(range, extents)))
    assert found.copies * threads >= math.prod(extents)


@pytest.mark.parametrize(
    ("extents", "threads", "k_tiles", "groups", "rounds", "copies"),
    [
        # Two groups of 240 threads take every second channel.
        ((8, 10, 24), 480, 8, (2,), 1, 4),
        # A third of the threads has nothing to copy, but one address instead of three.
        ((4, 7, 30), 384, 4, (1,), 1, 4),
        # In many k-tiles a copy less is worth more than two addresses.
        ((4, 7, 30), 384, 64, (), 3, 3),
        # But registers are worth more than copies.
        ((64, 46, 7), 314, 32, (1,), 2, 128),
        # More rows than threads.
        ((2, 16, 16), 128, 4, (1,), 2, 4),
    ],
)
def test_what_is_cheapest(extents, threads, k_tiles, groups, rounds, copies):
    found = spread(extents, 1, threads, k_tiles)
    assert (found.groups, found.rounds, found.copies) == (groups, rounds, copies)
