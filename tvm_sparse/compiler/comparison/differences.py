"""How outputs differ, and how far they may."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tvm_sparse.conv.dtypes import FLOAT32
from tvm_sparse.conv.error_bounds import TF32_CUT
from tvm_sparse.conv.reference import AGREEMENT, HALF_AGREEMENT, relative_difference
from tvm_sparse.conv.storage import STORAGE, is_half
from tvm_sparse.errors import ModelError
from tvm_sparse.frontend.prepare import PreparedModel

# What a network whose tensors are stored in half precision, or that computes in TF32, may differ by.
ROUNDED_AGREEMENT = 2e-2
# Half of a step of eight bits, by `settle.ROUNDINGS` of it.
QUANTISED_ROUNDOFF = 2.0**-13
# Integers that stand for rounded numbers.
_BYTES = ("int8", "uint8")
# The amount of a difference that is none of numbers.
NAN = float("nan")


@dataclass(frozen=True)
class Difference:
    """One output beside what it should be.

    `amount` is that of `Comparison.difference`, NaN where shapes or types differ; `text` says it, empty where both
    agree.
    """

    output: int
    amount: float
    text: str = ""


@dataclass(frozen=True)
class Tolerance:
    """By what fraction of the largest value outputs may differ, and the relative error of one rounding.

    Those of a quantised network may by more, where its own move as far: a sum on the edge of two steps is enough.
    """

    agreement: float
    roundoff: float
    is_quantised: bool = False

    @classmethod
    def of(cls, prepared: PreparedModel, allow_tf32: bool) -> "Tolerance":
        """Of a model whose convolutions may round to TF32."""
        main = prepared.mod["main"]
        types = [each.ty for each in main.params]
        types += [main.ret_ty] if hasattr(main.ret_ty, "dtype") else list(main.ret_ty.fields)
        dtypes = {
            *prepared.inputs,
            *(str(each.dtype) for each in types),
            *(each.spec.dtype for each in prepared.layers),
        }
        halves = [dtype for dtype in dtypes if is_half(dtype)]
        if prepared.is_quantised:
            return cls(ROUNDED_AGREEMENT, QUANTISED_ROUNDOFF, True)
        if not halves:
            return cls(ROUNDED_AGREEMENT, TF32_CUT) if allow_tf32 else cls(AGREEMENT, STORAGE[FLOAT32].roundoff)
        agreement = max(ROUNDED_AGREEMENT, *(HALF_AGREEMENT[dtype] for dtype in halves))
        return cls(agreement, max(STORAGE[dtype].roundoff for dtype in halves))


def require_apart(difference: float, agreement: float, batch: int) -> None:
    """Raise ModelError where a sample gives something else at `batch` than elsewhere, by more than `agreement`."""
    if not difference <= agreement:
        problem = "what comes out for a sample depends on the others of its batch"
        found = f"a difference of {difference:.3g} of the largest value at batch {batch}"
        hint = "such a model is right only in the batch that it is given: compile it without batch"
        raise ModelError("model", problem, found, f"up to {agreement}", hint)


def differences(found: Sequence[np.ndarray], expected: Sequence[np.ndarray], agreement: float) -> list[Difference]:
    """Every output beside what it should be; one only, which says so, where there are more or fewer."""
    if len(found) != len(expected):
        return [Difference(0, NAN, f"{len(found)} outputs instead of {len(expected)}")]
    pairs = zip(found, expected, strict=True)
    return [_difference(output, *pair, agreement) for output, pair in enumerate(pairs)]


def _difference(output: int, found: np.ndarray, expected: np.ndarray, agreement: float) -> Difference:
    if found.shape != expected.shape:
        return Difference(output, NAN, f"shape {found.shape} instead of {expected.shape}")
    # A cast model is compared with the model before that.
    if found.dtype != expected.dtype and not {str(found.dtype), str(expected.dtype)} <= STORAGE.keys():
        return Difference(output, NAN, f"element type {found.dtype} instead of {expected.dtype}")
    if expected.dtype.kind in "iub" and expected.dtype.name not in _BYTES:
        count = int((found != expected).sum())
        return Difference(output, count / max(found.size, 1), f"{count} of {found.size} elements" if count else "")
    amount = relative_difference(found, expected)
    return Difference(output, amount, "" if amount <= agreement else f"{amount:.3g} of the largest value")


def worst_difference(found: Sequence[np.ndarray], expected: Sequence[np.ndarray], agreement: float) -> Difference:
    """The largest of `differences`, one that is too large before others."""
    return max(differences(found, expected, agreement), key=lambda each: (bool(each.text), each.amount))


def says_something(outputs: Sequence[np.ndarray]) -> bool:
    """Whether each array of floating-point numbers has one that is finite, if it has any."""
    return all(not each.size or bool(np.isfinite(each.astype(np.float64)).any()) for each in outputs)
