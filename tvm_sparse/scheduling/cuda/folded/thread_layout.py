"""How the copies of a k-tile are spread over the threads of a block.

A k-tile is a nest of copies: images and input channels outside, rows and the copies of a row inside. Where a copy comes
from and whether it lies in the padding takes some 25 instructions, executed once, and three registers; a copy that is
only another channel or image further on is a constant distance away and shares them. So threads are laid over the inner
loops, several groups of them over a divisor of the outer ones, and each thread goes through what is left of these. Over
all loops in their order they make fewer copies where they do not divide, each with an address of its own.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

# Instructions that find where a copy comes from and goes to; each copy in a k-tile takes one.
ADDRESS = 25
# Addresses of a thread at most, where fewer are possible: each takes three registers.
MAX_ADDRESSES = 12


@dataclass(frozen=True)
class Spread:
    """The first `len(groups)` loops of a nest are gone through by each thread, the rest is laid over threads.

    `groups` are how many indices of each of these loops different threads copy at once, `rounds` how often all threads
    are needed for the rest, which is how many addresses a thread has, and `copies` those of a thread in a k-tile.
    """

    groups: tuple[int, ...]
    rounds: int
    copies: int


@cache
def spread(extents: tuple[int, ...], free: int, threads: int, k_tiles: int) -> Spread:
    """The cheapest spread of a nest of `extents`, of which at most the first `free` loops need no address of their own.

    `threads` share the copies of each of `k_tiles` k-tiles.
    """
    found = [_spread(extents[:outer], math.prod(extents[outer:]), threads) for outer in range(free + 1)]

    def cost(each: Spread) -> tuple[int, ...]:
        return max(each.rounds, MAX_ADDRESSES), each.rounds * ADDRESS + each.copies * k_tiles, each.rounds

    return min(found, key=cost)


def _spread(outer: Sequence[int], inner: int, threads: int) -> Spread:
    rounds = -(-inner // threads)
    room = max(threads // inner, 1)
    divisors = [[group for group in range(1, min(each, room) + 1) if each % group == 0] for each in outer]
    groups = max((each for each in itertools.product(*divisors) if math.prod(each) <= room), key=math.prod)
    return Spread(groups, rounds, rounds * math.prod(outer) // math.prod(groups))
