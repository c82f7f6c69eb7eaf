"""How far apart the staged rows of a tile lie in shared memory, so that few reads of a warp meet in one bank."""

from functools import cache

import numpy as np

from tvm_sparse.conv.output_tiling import OutputTiling


@cache
def row_stride(tiling: OutputTiling, pixels: int = 1, beside: int = 1) -> int:
    """The distance of rows, modulo the 32 banks, with which a warp's reads conflict least; whole copies.

    A thread has `pixels` outputs one below the other and `beside` side by side.
    """
    if not tiling.wraps:
        return tiling.width % 32
    columns, (y, x) = tiling.row_pixels // beside, tiling.footprint
    # A warp loads 32 floats at a time: so many threads all that they load at once.
    lanes = 32 // beside
    rows, places = np.divmod(np.arange(-(-256 // lanes) * lanes), columns)
    strides = np.arange(0, 32, tiling.lanes)
    starts = np.outer(strides, rows) * pixels * y.stride + places * beside * x.stride
    banks = (starts[..., None] + np.arange(beside)).reshape(-1, lanes * beside) % 32
    # Of each stride and each load the reads of each bank.
    reads = np.bincount((banks + 32 * np.arange(len(banks))[:, None]).ravel(), minlength=32 * len(banks))
    conflicts = reads.reshape(len(strides), -1, 32).max(axis=2).sum(axis=1)
    return int(min(zip(conflicts, (strides - tiling.width) % 32, strides, strict=True))[-1])


def row_floats(tiling: OutputTiling, stride: int) -> int:
    """Floats from one staged row to the next, which are `stride` modulo the 32 banks."""
    return tiling.width + (stride - tiling.width) % 32
