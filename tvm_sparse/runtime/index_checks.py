"""What a call says of its indices: the result behind the model's own, read when the call has run.

The code itself has clamped them, so that nothing outside of a tensor was read or written.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import tvm
import tvm_ffi

from tvm_sparse.conv.index_check import INT64, IndexCheck, total_size
from tvm_sparse.errors import InputError, first_line
from tvm_sparse.runtime.signature import Signature, TensorSpec


def with_bounds(signature: Signature, checks: Sequence[IndexCheck]) -> Signature:
    """The signature of the code of a model with `signature`: where there are `checks`, it has one result more."""
    if not checks:
        return signature
    return replace(signature, outputs=(*signature.outputs, TensorSpec("bounds", (total_size(checks),), INT64)))


def require_in_range(checks: Sequence[IndexCheck], bounds: np.ndarray) -> None:
    """Look at what a call gave behind its own results.

    InputError where an index is out of its range; the results are of another index.
    """
    start, found = 0, bounds.tolist()
    for check in checks:
        wrong = check.wrong(found[start : start + check.size])
        if wrong is not None:
            value, allowed = wrong
            hint = "look at the inputs that it comes from"
            raise InputError(check.where, "an index is out of range", value, allowed, hint)
        start += check.size


@contextmanager
def as_input_errors() -> Iterator[None]:
    """Turns what a model's own assertion says, such as that of torch's ``one_hot``, into an `input_error`."""
    try:
        yield
    except AssertionError as error:
        raise input_error(error) from None


def input_error(error: AssertionError) -> InputError:
    """What a model's own assertion says."""
    hint = "look at the inputs that it is of"
    return InputError("inputs", f"an assertion of the model fails: {first_line(error)}", hint=hint)


def on_host(tensor: Any, device: Any, stream: int) -> np.ndarray:
    """A tensor of torch or TVM, computed by work on `stream` of `device`, when that has run."""
    device.sync(stream)
    return (tensor if isinstance(tensor, tvm.runtime.Tensor) else tvm_ffi.from_dlpack(tensor)).numpy()
