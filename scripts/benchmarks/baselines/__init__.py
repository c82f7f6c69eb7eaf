"""The baselines that pruned convolutions are compared with, for benchmarks only; they need torch (extra ``torch``).

In: a convolution and its weight. Out: a `Baseline` that prepares what is timed.
"""

from pathlib import Path

from benchmarks.baselines.base import Baseline, NotServed, Prepared

__all__ = ["Baseline", "NotServed", "Prepared", "all_baselines"]


def all_baselines(escort_library: Path | None = None) -> list[Baseline]:
    """Every baseline, variants of a family side by side; Escort's need what ``escort_kernels.build`` made."""
    from benchmarks.baselines import cudnn, escort, im2col

    kernels = escort.Kernels(escort_library) if escort_library is not None else None
    return [*cudnn.baselines(), *im2col.baselines(), *escort.baselines(kernels)]
