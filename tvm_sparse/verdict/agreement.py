"""Whether outputs of two models agree, before anybody compares their times."""

from collections.abc import Iterable, Sequence

import numpy as np

from tvm_sparse.compiler.building.dense_products import IN_TF32
from tvm_sparse.compiler.checking.layer_check import agreement_of
from tvm_sparse.conv.reference import relative_difference
from tvm_sparse.errors import VerificationError
from tvm_sparse.runtime.libraries import CUDNN
from tvm_sparse.runtime.multi_shape_model import AnyModel


def check_agreement(
    where: str,
    found: Sequence[np.ndarray],
    expected: Sequence[np.ndarray],
    schedules: Iterable[str] = (),
    dtypes: Iterable[str] = (),
) -> float:
    """Largest difference of any output, as a fraction of that output's largest value.

    `schedules` compute the convolutions of either side, as far as they are known; tensors are stored in `dtypes`.
    VerificationError where it is more than `agreement_of` these; or a value is not finite where the expected one is.
    """
    worst = max(map(relative_difference, found, expected), default=0.0)
    agreement = agreement_of(schedules, dtypes)
    if not worst <= agreement:
        raise VerificationError(where, "the outputs differ", f"{worst:.3g} of the largest value", f"up to {agreement}")
    return worst


def schedules_of(model: AnyModel, allow_tf32: bool) -> list[str]:
    """What computes the layers of `model`; for dense linear layers, which have no row, that cuDNN may in TF32."""
    return [row["schedule"] for row in model.report()] + [IN_TF32] * (allow_tf32 and CUDNN in model.libraries)
