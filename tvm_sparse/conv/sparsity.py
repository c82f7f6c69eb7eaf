"""SparsityPattern: what the zeros of one weight look like, and the digests that identify it."""

import hashlib
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

# Lengths along K tested for "vector" structure, longest first (Tan et al. 2022, out-channel vectors).
VECTOR_LENGTHS = (32, 16, 8, 4, 2)


def digest(array: np.ndarray) -> str:
    """SHA-256 of shape, dtype and bytes, 32 hex digits: enough to identify an array."""
    head = f"{array.shape}{array.dtype.str}".encode()
    return hashlib.sha256(head + np.ascontiguousarray(array).tobytes()).hexdigest()[:32]


@dataclass(frozen=True)
class SparsityPattern:
    """Summary of the zeros of a weight (K, C / groups, R, S): `nnz` of its `size` elements are not zero.

    `structure` is found from the mask, never declared: ``dense`` (no zeros), ``empty`` (only zeros),
    ``vector<V>`` (blocks of V output channels share their non-zero positions), ``<N>:<M>`` (at most N
    non-zeros in every M input channels) or ``unstructured``. Dead filters and input channels have only zeros. The
    digests identify the positions of the non-zeros, and these with their values.
    """

    size: int
    nnz: int
    structure: str
    dead_filters: int
    dead_channels: int
    mask_digest: str
    value_digest: str

    @property
    def density(self) -> float:
        """Non-zeros / size."""
        return self.nnz / self.size

    @classmethod
    def of(cls, weight: np.ndarray) -> "SparsityPattern":
        """The pattern of `weight`; -0.0 counts as zero."""
        mask = weight != 0
        return cls(
            size=int(mask.size),
            nnz=int(mask.sum()),
            structure=_structure(mask),
            dead_filters=int((~mask.any(axis=(1, 2, 3))).sum()),
            dead_channels=int((~mask.any(axis=(0, 2, 3))).sum()),
            mask_digest=digest(np.packbits(mask)),
            value_digest=digest(np.where(mask, weight, 0)),
        )

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return asdict(self)


def _structure(mask: np.ndarray) -> str:
    if mask.all():
        return "dense"
    if not mask.any():
        return "empty"
    k, cg = mask.shape[:2]
    for length in VECTOR_LENGTHS:
        if k % length == 0:
            vectors = mask.reshape(k // length, length, -1)
            if (vectors == vectors[:, :1]).all():
                return f"vector{length}"
    density = mask.mean()
    for m in (4, 8, 16):
        if cg % m == 0:
            n = int(mask.reshape(k, cg // m, m, -1).sum(axis=2).max())
            # An N:M structure is one that the mask uses up; by chance a sparse mask satisfies a loose one.
            if n < m and density > 0.9 * n / m:
                return f"{n}:{m}"
    return "unstructured"
