"""Compare a compiled model with its source on one random input, and settle what differs before it is refused."""

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tvm.target import Target

from tvm_sparse.compiler.checking.random_inputs import outputs_of
from tvm_sparse.compiler.comparison.differences import (
    ROUNDED_AGREEMENT,
    Tolerance,
    require_apart,
    says_something,
    worst_difference,
)
from tvm_sparse.compiler.comparison.onnx_reference import OnnxReference
from tvm_sparse.compiler.comparison.reference import Alone, NotCompared, Reference, first_answer
from tvm_sparse.compiler.comparison.settle import settled
from tvm_sparse.compiler.comparison.torch_reference import TorchReference
from tvm_sparse.conv.reference import relative_difference
from tvm_sparse.errors import TvmSparseError, last_line
from tvm_sparse.frontend.batch import examples_of
from tvm_sparse.frontend.one_at_a_time import one_at_a_time
from tvm_sparse.frontend.prepare import PreparedModel
from tvm_sparse.request.request import Request
from tvm_sparse.request.variant import Variant
from tvm_sparse.runtime.comparison import Comparison
from tvm_sparse.runtime.compiled_model import CompiledModel
from tvm_sparse.target.compatibility import why_not_here

# Environment variable: 0 leaves the comparison out wherever nothing else is said.
SWITCH = "TVM_SPARSE_COMPARE"


@dataclass(frozen=True)
class Source:
    """What a model is compiled from, for one batch and size; see `tvm_sparse.compile`."""

    model: Any
    example_inputs: Any
    shapes: Mapping[str, Sequence[int]] | None
    batch: int | None = None

    @classmethod
    def of(cls, request: Request, variant: Variant) -> "Source":
        """One variant of what was asked for."""
        return cls(request.source, request.example_inputs, variant.shapes, variant.batch)

    @property
    def examples(self) -> Any:
        """The inputs that a torch module is traced with."""
        return examples_of(self.model, self.example_inputs, self.shapes, self.batch)

    @property
    def is_onnx(self) -> bool:
        """Whether it is a file of that kind, and there."""
        path = Path(self.model) if isinstance(self.model, str | Path) else Path()
        return path.suffix == ".onnx" and path.is_file()

    def reference(self) -> Reference:
        """What runs it."""
        if self.is_onnx:
            return OnnxReference(Path(self.model), self.shapes, self.batch)
        return TorchReference(self.model, self.examples)


def is_wanted(compare: bool | None) -> bool:
    """What the user says, else what the environment does."""
    return os.environ.get(SWITCH) != "0" if compare is None else compare


class Comparing:
    """The comparison of one model with its source, for as long as it is entered.

    * `source`: the model.
    * `target`, `allow_tf32`: what it is compiled for.
    * `alone`: compiles a model of one operator, where results differ.
    * `compare`: whether there is to be a comparison; see `is_wanted`.
    """

    def __init__(self, source: Source, target: Target, alone: Alone, allow_tf32: bool, compare: bool | None):
        self._source, self._alone, self._allow_tf32 = source, alone, allow_tf32
        self._is_wanted = is_wanted(compare)
        self._obstacle = why_not_here(target) if self._is_wanted else ""
        self._reference: Reference | None = None

    def __enter__(self) -> "Comparing":
        # Its process starts while the model is imported, which says what is wrong with another path.
        if self._is_wanted and not self._obstacle and self._source.is_onnx:
            try:
                self._reference = self._source.reference()
            except (TvmSparseError, OSError) as error:
                self._obstacle = f"there is no place for temporary files ({last_line(error)})"
        return self

    def __exit__(self, *_: object) -> None:
        if self._reference is not None:
            self._reference.close()

    @one_at_a_time
    def expect(self, prepared: PreparedModel) -> None:
        """Start to run the source of `prepared`, which is then compiled."""
        if not self._is_wanted or self._obstacle:
            return
        if self._reference is None:
            self._reference = self._source.reference()
        self._prepared = prepared
        self._answer = self._reference.begin(partial(first_answer, self._reference, prepared))

    @one_at_a_time
    def judge(self, model: CompiledModel) -> None:
        """Compare what `expect` was told of; `model` then says how.

        VerificationError where the results differ, and neither ONNX's reference implementation nor the network's own
        rounding explains it.
        """
        if not self._is_wanted:
            return
        start_s = time.monotonic()
        try:
            reference, difference, note = self._found(model)
        except NotCompared as error:
            reference, difference, note = None, None, str(error)
        model.comparison = Comparison(reference, difference, time.monotonic() - start_s, note)

    @one_at_a_time
    def require_apart(self) -> None:
        """Raise ModelError where the source makes something else of a sample in a batch that is not compiled.

        That is batch 2, of a model of batch 1, else 1. A source that runs in its own batch alone says nothing.
        """
        batch = self._source.batch
        if batch is None or not self._is_wanted or self._obstacle:
            return
        count = 1 if batch > 1 else 2
        with suppress(NotCompared, OSError), closing(replace(self._source, batch=count).reference()) as reference:
            answer = self._answer()
            found = next(reference.ways()).run([_last_of(each, count) for each in answer.given])
            agreement = max(Tolerance.of(self._prepared, self._allow_tf32).agreement, ROUNDED_AGREEMENT)
            for own, known in zip(found, answer.outputs, strict=True):
                # Where two numbers are nearly the same, rounding may choose either: few elements say nothing.
                if own.shape[:1] == (count,) and _share_apart(own[-1:], known[:1], agreement) > agreement:
                    require_apart(relative_difference(own[-1:], known[:1]), agreement, count)

    def _found(self, model: CompiledModel) -> tuple[str, float, str]:
        """The fields of a `Comparison`."""
        if self._obstacle:
            raise NotCompared(self._obstacle)
        assert self._reference is not None, "expect was called"
        try:
            answer = self._answer()
        except OSError as error:
            raise NotCompared(f"a file is gone ({last_line(error)})") from error
        # Its first call is the user's: on a GPU it allocates, and records a graph.
        parts = (model.executable, model.target, model.signature, (), False, model.libraries)
        other = CompiledModel(*parts, checks=model.checks)
        other.run_on(model.device.index)
        try:
            outputs = outputs_of(other, answer.inputs)
        except (TvmSparseError, RuntimeError) as error:
            raise NotCompared(f"the compiled model does not run on random inputs ({last_line(error)})") from error
        tolerance = Tolerance.of(self._prepared, self._allow_tf32)
        worst = worst_difference(outputs, answer.outputs, tolerance.agreement)
        if worst.text:
            return settled(self._reference, answer, outputs, tolerance, self._alone)
        note = "" if says_something(answer.outputs) else "it makes nothing but NaN and infinity of random inputs"
        return answer.way.name, worst.amount, note


def _last_of(given: np.ndarray, batch: int) -> np.ndarray:
    """The first sample as the last of so many, behind its double, or itself where that may be no index."""
    first = given[:1]
    return np.concatenate([*[first if given.dtype.kind in "iub" else first + first] * (batch - 1), first])


def _share_apart(own: np.ndarray, known: np.ndarray, agreement: float) -> float:
    """How many of all elements differ by more than `agreement` of the largest value."""
    if own.shape != known.shape:
        return 1.0
    own, known = own.astype(np.float64), known.astype(np.float64)
    with np.errstate(invalid="ignore"):
        apart = np.abs(own - known) > agreement * np.abs(known).max(initial=0.0)
    return int(np.count_nonzero(apart)) / max(apart.size, 1)
