"""What a schedule tells the code generator: FOLD, stages, order, release, parts."""

from __future__ import annotations

from enum import IntEnum

# Annotation of the loop that adds partial sums up, over a block's share of the output channels: the number of parts.
PARTS = "tvm_sparse.parts"
# Annotation of the outermost loop of a nest to fold. Its value is the number of thread blocks that a multiprocessor
# should hold at once, which caps the registers of a CUDA kernel; 1 where it does not matter.
FOLD = "tvm_sparse.fold"
# Attribute that carries the weight of a function that has none among its arguments.
WEIGHT_ATTRIBUTE = "tvm_sparse.weight"
# A load of the weight between `bind_weight` and `FoldWeights`.
WEIGHT_CALL = "tvm_sparse_weight"
# Chunks from the first to the last; turned, blocks start at different ones; persistent, blocks go on with other pixels
# (`ring`).
STRAIGHT, TURNED, PERSISTENT = 0, 1, 2


class Order(IntEnum):
    STRAIGHT, ROTATED = 0, 1


# When the next kernel may start (`overlap`).
AT_EXIT, LAST_CHUNK, AT_ONCE = 0, 1, 2


class DependentLaunch(IntEnum):
    AT_EXIT, LAST_K_TILE, AT_ONCE = 0, 1, 2


# Annotation of a chunk loop: when the next kernel may start.
RELEASE = "tvm_sparse.release"
# Annotation of a chunk loop: the number of buffers, 2 or more.
RING = "tvm_sparse.ring"
# Annotation of a chunk loop beside `RING`: one of `gpu_kernel.ORDERS`.
ORDER = "tvm_sparse.order"
