"""Whether a network's own results move where its inputs change by rounding errors."""

from collections.abc import Callable, Sequence

import numpy as np

from tvm_sparse.compiler.comparison.differences import Difference, differences

SEED = 2020
# So often are inputs changed, each time by up to so many rounding errors: those of a network add up.
DRAWS = 4
ROUNDINGS = 16
# How much farther than the farthest of these another computation of the same may come.
MARGIN = 4.0


def moves_as_far(
    run: Callable[[Sequence[np.ndarray]], list[np.ndarray]],
    inputs: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray],
    found: Sequence[Difference],
    roundoff: float,
) -> bool:
    """Whether every output that differs also differs as much between `outputs` and what near `inputs` give.

    Choices do that, such as the place of the largest of two equal values, and sums that cancel.
    """
    rng = np.random.default_rng(SEED)
    moved = [0.0] * len(outputs)
    for _ in range(DRAWS):
        near = differences(run([_near(rng, each, ROUNDINGS * roundoff) for each in inputs]), outputs, 0.0)
        moved = [max(far, each.amount) for far, each in zip(moved, near, strict=True)]
    # What is no number, such as the difference of two shapes, is never less.
    return all(not each.text or each.amount <= MARGIN * moved[each.output] for each in found)


def _near(rng: np.random.Generator, array: np.ndarray, share: float) -> np.ndarray:
    """`array` with its numbers changed by up to this share of each."""
    if array.dtype.kind in "iub":
        return array
    return (array * (1 + rng.uniform(-share, share, array.shape))).astype(array.dtype)
