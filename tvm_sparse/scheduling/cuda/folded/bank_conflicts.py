"""How far apart the staged rows of a tile lie in shared memory, so that few reads of a warp meet in one bank."""

from collections import Counter
from functools import cache

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

    def conflicts(stride: int) -> int:
        total = 0
        for first in range(0, 256, lanes):
            places = {divmod(thread, columns) for thread in range(first, first + lanes)}
            starts = [row * pixels * y.stride * stride + column * beside * x.stride for row, column in places]
            total += max(Counter((start + i) % 32 for start in starts for i in range(beside)).values())
        return total

    return min(range(0, 32, tiling.lanes), key=lambda stride: (conflicts(stride), (stride - tiling.width) % 32))


def row_floats(tiling: OutputTiling, stride: int) -> int:
    """Floats from one staged row to the next, which are `stride` modulo the 32 banks."""
    return tiling.width + (stride - tiling.width) % 32
