"""SparsityPattern: what the zeros of one weight look like, and the digests that identify it."""

import hashlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tvm_sparse.conv.codes import fours_of, holds_codes, wide_fours_of
from tvm_sparse.conv.structure import Structure, vector_length


def digest(array: np.ndarray) -> str:
    """SHA-256 of shape, dtype and bytes, 32 hex digits: enough to identify an array."""
    found = hashlib.sha256(f"{array.shape}{array.dtype.str}".encode())
    found.update(np.ascontiguousarray(array).data)
    return found.hexdigest()[:32]


@dataclass(frozen=True)
class SparsityPattern:
    """Summary of the zeros of a weight (K, C / groups, R, S): `nnz` of its `size` elements are not zero.

    `structure` is the name of what `Structure` finds in the mask, never declared. Dead filters and input channels have
    only zeros. The digests identify the positions of the non-zeros, and these with their values. Of a quantised weight
    `fours` is how many fours of input channels at one tap have a non-zero, of which so many are `wide_fours`, whose
    products may be too large for int16; 0 of another.
    """

    size: int
    nnz: int
    structure: str
    dead_filters: int
    dead_channels: int
    mask_digest: str
    value_digest: str
    # Older lines of logs lack them.
    fours: int = field(default_factory=int, metadata={"optional": True})
    wide_fours: int = field(default_factory=int, metadata={"optional": True})

    @property
    def density(self) -> float:
        """Non-zeros / size."""
        return self.nnz / self.size

    @property
    def vector(self) -> int:
        """Output channels side by side that share each non-zero; 1 where they do not."""
        return vector_length(self.structure)

    @classmethod
    def of(cls, weight: np.ndarray, groups: int = 1) -> "SparsityPattern":
        """The pattern of `weight`; -0.0 counts as zero, and no vector or tile spans two of the convolution's groups."""
        mask, is_quantised = weight != 0, holds_codes(weight)
        return cls(
            size=int(mask.size),
            nnz=int(mask.sum()),
            structure=Structure.of(mask, groups).name,
            dead_filters=int((~mask.any(axis=(1, 2, 3))).sum()),
            dead_channels=int((~mask.any(axis=(0, 2, 3))).sum()),
            mask_digest=digest(np.packbits(mask)),
            value_digest=digest(np.where(mask, weight, 0)),
            fours=fours_of(weight) if is_quantised else 0,
            wide_fours=wide_fours_of(weight) if is_quantised else 0,
        )

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values; those of fours where there are some."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {name: value for name, value in values.items() if value or not name.endswith("fours")}
