"""What is to be made of a model whose outputs are not those of its source."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from tvm_sparse.compiler.comparison.differences import Difference, Tolerance, differences, worst_difference
from tvm_sparse.compiler.comparison.reference import Alone, Answer, NotCompared, Reference, Settled
from tvm_sparse.conv.reference import AGREEMENT
from tvm_sparse.errors import TvmSparseError, VerificationError

# How long operators are compiled one by one.
SEARCH_S = 60.0
# Of the elements of an output, or of its largest value: so small a difference is looked for in rounding first.
FEW = 1e-2
# So often are inputs changed, each time by up to so many rounding errors: those of a network add up.
SEED, DRAWS, ROUNDINGS = 2020, 4, 16
# How much farther than the farthest of these another computation of the same may come.
MARGIN = 4.0
ROUNDING = "its own outputs move as far where an input changes by rounding errors"
HINT = "report it with the model; --no-compare, in Python compare=False, compiles it all the same"


def settled(
    reference: Reference, answer: Answer, outputs: Sequence[np.ndarray], tolerance: Tolerance, alone: Alone
) -> tuple[str, float, str]:
    """Name of the reference, largest difference and a note; VerificationError where `outputs` differ for no reason."""
    name, agreement = answer.way.name, tolerance.agreement
    # A half-precision model rounds in other places than we do.
    if (widened := _widened(reference, answer)) is not None:
        worst = worst_difference(outputs, widened.outputs, agreement)
        if not worst.text:
            return widened.way.name, worst.amount, ""
    worst = worst_difference(outputs, answer.outputs, agreement)
    may_be_rounding = worst.amount <= FEW or tolerance.is_quantised
    if may_be_rounding and _is_rounding(answer, differences(outputs, answer.outputs, agreement), tolerance):
        return name, worst.amount, ROUNDING
    search = _searched(reference, answer, alone)
    if search.wrong:
        place = f"{reference.where}, {search.wrong}"
        alone_problem = f"compiled alone it gives another result than {name}"
        raise VerificationError(place, alone_problem, search.difference, f"up to {AGREEMENT} of it", HINT)
    found = differences(outputs, search.outputs if search.disputed else answer.outputs, agreement)
    amount = max(each.amount for each in found)
    if not any(each.text for each in found):
        nodes = ", ".join(search.disputed)
        return name, amount, f"{name} departs from ONNX's reference implementation in {nodes}"
    if _is_rounding(answer, found, tolerance):
        return name, amount, ROUNDING
    numbers, text = ", ".join(str(each.output) for each in found if each.text), next(e.text for e in found if e.text)
    where = reference.where
    problem = f"output {numbers} is not what {name} computes, and no operator that can be compiled alone explains it"
    raise VerificationError(where, problem, text, f"up to {agreement} of it", HINT)


def _widened(reference: Reference, answer: Answer) -> Answer | None:
    """The answer of a half-precision model in float32; None where there is none."""
    try:
        way = reference.widened()
        return replace(answer, way=way, outputs=way.run(answer.given)) if way is not None else None
    except (NotCompared, TvmSparseError):
        return None


def _is_rounding(answer: Answer, found: Sequence[Difference], tolerance: Tolerance) -> bool:
    """Whether the source's own outputs move as far; not where they cannot be had again."""
    try:
        return moves_as_far(answer.way.run, answer.given, answer.outputs, found, tolerance.roundoff)
    except NotCompared:
        return False


def _searched(reference: Reference, answer: Answer, alone: Alone) -> Settled:
    """What looking at each operator shows; nothing where the source does not show what is between them."""
    try:
        return reference.settle(answer.given, alone, time.monotonic() + SEARCH_S)
    except (NotCompared, TvmSparseError):
        return Settled()


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
