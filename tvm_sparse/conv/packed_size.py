"""How many bytes a weight takes as data, packed by its structure."""

import numpy as np

from tvm_sparse.conv.structure import Structure
from tvm_sparse.conv.structured_mask import unit_saliency, unit_shape

# Of a float32 value, of the place of a non-zero or unit, and of where a row of units begins.
VALUE, PLACE, START = 4, 4, 4


def packed_bytes(mask: np.ndarray, structure: Structure, groups: int = 1) -> int:
    """Bytes of a weight with this mask (K, C / groups, R, S), whose structure is `structure` (`Structure.of`).

    Values in float32, all of a kept unit; a 32-bit place for each unit, a weight, vector or slice; and for each row of
    units where it begins. That is CSR for unstructured weights, whose unit is one weight. Two of four has two bits a
    non-zero, and whole filters and dense weights have no places.
    """
    nnz = int(np.count_nonzero(mask))
    if structure.name == "dense":
        return VALUE * mask.size
    if structure.name == "filters":
        return VALUE * nnz + START * len(mask)
    if structure.name == "2:4":
        return VALUE * mask.size // 2 + mask.size // 8
    if structure.order is not None:
        mask = mask[np.asarray(structure.order)]
    unit = unit_shape(structure, mask.shape, groups)
    units = int(np.count_nonzero(unit_saliency(mask, unit)))
    order = PLACE * len(mask) if structure.order is not None else 0
    return units * (int(np.prod(unit)) * VALUE + PLACE) + START * (len(mask) // unit[0] + 1) + order
