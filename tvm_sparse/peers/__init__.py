"""The rivals that pruned convolutions are compared with, for benchmarks only. They need torch (extra ``torch``)."""

from __future__ import annotations

from pathlib import Path

from tvm_sparse.peers.base import NotServed, Peer, Prepared

__all__ = ["NotServed", "Peer", "Prepared", "all_peers"]


def all_peers(escort_library: Path | None = None) -> list[Peer]:
    """Every rival, variants of one family side by side; Escort's need what ``escort_kernels.build`` made."""
    from tvm_sparse.peers import cudnn, escort, im2col, pruned

    kernels = escort.Kernels.load(escort_library) if escort_library is not None else None
    return [*cudnn.peers(), *im2col.peers(), *escort.peers(kernels), *pruned.peers()]
