"""The weight of a convolution of an image as lanes of warps keep it in registers."""

import numpy as np

from tvm_sparse.conv.storage import stored
from tvm_sparse.scheduling.cuda.first.tiling import CHANNELS, FILTERS, GROUP, KERNELS, TAPS, FirstTiling


def packed(weight: np.ndarray, tiling: FirstTiling) -> np.ndarray:
    """A weight (K, C, R, S) as int32 (units, 1, 4), 16 bytes a unit: a warp's filters, step after step.

    A lane has the four channels of a tap of two filters, the first two channels of both before the others; 4 lanes side
    by side have the taps of a step, 8 of these 16 filters. What a step lacks of taps, a tap of channels and the last
    warp of filters is zeros.
    """
    k, c, r, s = weight.shape
    m_tiles, steps = KERNELS[tiling.steps][0], tiling.steps
    full = np.zeros((tiling.filter_tiles * tiling.groups * GROUP, steps * TAPS, CHANNELS), np.float32)
    full[:k, : r * s, :c] = weight.reshape(k, c, r * s).transpose(0, 2, 1)
    lanes = full.reshape(-1, m_tiles, FILTERS // 2, 2, steps, TAPS, CHANNELS // 2, 2)
    words = lanes.transpose(0, 4, 1, 2, 5, 6, 3, 7)
    return np.ascontiguousarray(stored(words, tiling.spec.dtype)).reshape(-1).view(np.int32).reshape(-1, 1, 4)
