"""The baselines that pruned convolutions are compared with, for benchmarks only; they need torch (extra ``torch``).

In: a convolution and its weight. Out: a `Peer` that prepares what is timed.
"""

from __future__ import annotations

from pathlib import Path

from tvm_sparse.benchmarks.baselines.base import NotServed, Peer, Prepared

__all__ = ["NotServed", "Peer", "Prepared", "all_peers"]


def all_peers(escort_library: Path | None = None) -> list[Peer]:
    """Every rival, variants of one family side by side; Escort's need what ``escort_kernels.build`` made."""
    from tvm_sparse.benchmarks.baselines import channel_pruned, cudnn, escort, im2col

    kernels = escort.Kernels.load(escort_library) if escort_library is not None else None
    return [*cudnn.peers(), *im2col.peers(), *escort.peers(kernels), *channel_pruned.peers()]
