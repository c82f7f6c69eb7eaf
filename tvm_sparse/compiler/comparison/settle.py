"""What is to be made of a model whose outputs are not those of its source."""

import time
from collections.abc import Sequence

import numpy as np

from tvm_sparse.compiler.comparison.reference import Alone, Answer, NotCompared, Reference, Settled
from tvm_sparse.compiler.comparison.unstable import moves_as_far
from tvm_sparse.compiler.comparison.verdict import Tolerance, differences, worst_difference
from tvm_sparse.conv.reference import AGREEMENT
from tvm_sparse.errors import VerificationError

# How long operators are compiled one by one.
SEARCH_S = 60.0
HINT = "report it with the model; --no-compare, in Python compare=False, compiles it all the same"


def settled(
    reference: Reference, answer: Answer, outputs: Sequence[np.ndarray], tolerance: Tolerance, alone: Alone
) -> tuple[str, float, str]:
    """Name of the reference, largest difference and a note, where there is a reason for `outputs` to differ.

    Raises
    ------
    VerificationError
        There is none.
    """
    name, agreement = answer.way.name, tolerance.agreement
    if (widened := reference.widened()) is not None:
        # A half-precision model rounds in other places than we do.
        worst = worst_difference(outputs, widened.run(answer.given), agreement)
        if not worst.text:
            return widened.name, worst.amount, ""
    search = _searched(reference, answer, alone)
    if search.wrong:
        place = f"{reference.where}, {search.wrong}"
        alone_problem = f"compiled alone it gives another result than {name}"
        raise VerificationError(place, alone_problem, search.difference, f"up to {AGREEMENT} of it", HINT)
    expected = search.outputs if search.disputed else answer.outputs
    worst = worst_difference(outputs, expected, agreement)
    if not worst.text:
        nodes = ", ".join(search.disputed)
        return name, worst.amount, f"{name} departs from ONNX's reference implementation in {nodes}"
    found = differences(outputs, expected, agreement)
    if moves_as_far(answer.way.run, answer.given, answer.outputs, found, tolerance.roundoff):
        return name, worst.amount, "its own outputs move as far where an input changes by rounding errors"
    numbers = ", ".join(str(each.output) for each in found if each.text)
    where, problem = reference.where, f"output {numbers} is not what {name} computes, and no operator differs alone"
    raise VerificationError(where, problem, worst.text, f"up to {agreement} of it", HINT)


def _searched(reference: Reference, answer: Answer, alone: Alone) -> Settled:
    """What looking at each operator shows; nothing where the source does not show what is between them."""
    try:
        return reference.settle(answer.given, alone, time.monotonic() + SEARCH_S)
    except NotCompared:
        return Settled()
