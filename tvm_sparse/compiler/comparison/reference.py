"""What a compiled model is compared with."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from tvm_sparse.compiler.checking.random_inputs import ATTEMPTS, random_inputs
from tvm_sparse.compiler.comparison.differences import says_something
from tvm_sparse.compiler.signature_of import signature_of
from tvm_sparse.conv.dtypes import FLOAT32
from tvm_sparse.conv.storage import is_half, stored
from tvm_sparse.frontend.prepare import PreparedModel
from tvm_sparse.runtime.multi_shape_model import AnyModel

# Random inputs are drawn from it.
SEED = 2020
# Compiles a model of one operator, given as its file or as a module with example inputs.
Alone = Callable[..., AnyModel]


class NotCompared(Exception):
    """Why there is nothing to compare with."""


class Refused(NotCompared):
    """The source does not run on an input, or not in this way."""


@dataclass(frozen=True)
class Way:
    """One way to run the source, by its name for the user."""

    name: str
    run: Callable[[Sequence[np.ndarray]], list[np.ndarray]]


@dataclass(frozen=True)
class Answer:
    """What the source makes of some inputs: those of the compiled model, and `given` in the source's own types."""

    way: Way
    inputs: list[np.ndarray]
    given: list[np.ndarray]
    outputs: list[np.ndarray]


@dataclass(frozen=True)
class Settled:
    """What became of a search, operator by operator, for what makes two results differ.

    `wrong` names the first operator that differs alone, by `difference`. `outputs` are the source's with our results of
    the operators `disputed`, which are those of ONNX's reference implementation and not of ONNX Runtime.
    """

    wrong: str = ""
    difference: str = ""
    outputs: list[np.ndarray] = field(default_factory=list)
    disputed: tuple[str, ...] = ()


class Reference(Protocol):
    """A source that can be run."""

    where: str

    def ways(self) -> Iterator[Way]:
        """The ways to run it, the best first; each raises `NotCompared` where it does not."""

    def widened(self) -> Way | None:
        """In float32 with the same numbers, of a source in half precision."""

    def begin(self, work: Callable[[], Answer]) -> Callable[[], Answer]:
        """Start `work` where that can be done beside others; returns what waits for its result."""

    def settle(self, inputs: Sequence[np.ndarray], alone: Alone, end_s: float) -> Settled:
        """Look for the operator that makes the difference, until the clock shows `end_s`."""

    def close(self) -> None:
        """End what was started."""


def first_answer(reference: Reference, prepared: PreparedModel) -> Answer:
    """What the source makes of random inputs, in the first way and of the first inputs with which it does.

    NotCompared where it does with none, or takes too long, or more memory than there is.
    """
    reason, found = "", None
    for way in reference.ways():
        for attempt in range(ATTEMPTS):
            inputs = _inputs(prepared, attempt)
            given = [array.astype(own, copy=False) for array, own in zip(inputs, prepared.inputs, strict=True)]
            try:
                answer = Answer(way, inputs, given, way.run(given))
            except Refused as error:
                reason = reason or f"{way.name} does not run the model ({error})"
                continue
            if says_something(answer.outputs):
                return answer
            found = found or answer
        if found is not None:
            return found
    raise NotCompared(reason or "nothing here runs the model")


def _inputs(prepared: PreparedModel, attempt: int) -> list[np.ndarray]:
    """Half-precision numbers are rounded to the source's own type too, so that both are given the same."""
    arrays = random_inputs(signature_of(prepared).inputs, SEED, attempt)
    pairs = zip(arrays, prepared.inputs, strict=True)
    return [stored(stored(array, own), array.dtype.name) if is_half(own) else array for array, own in pairs]


def in_float32(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """`arrays`, those in half precision widened."""
    return [each.astype(FLOAT32) if is_half(each.dtype.name) else each for each in arrays]
