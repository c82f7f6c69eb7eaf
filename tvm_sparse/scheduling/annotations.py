"""The contract between schedules and code generation: what a scheduled function says beyond its loops.

Schedules annotate loops with these keys, and the passes of `codegen` read them. A *k-tile* is the share of the input
channels that is staged in shared memory at a time, its loop the k-tile loop. A thread block computes a tile of the
output: some pixels of some output channels, whose weights are code.
"""

from enum import IntEnum

# On the outermost loop of a multiply-add nest: its weights become immediates (`fold_weights`). The value is the number
# of thread blocks that a multiprocessor should hold at once, which caps a CUDA kernel's registers; 1: no cap.
FOLD = "tvm_sparse.fold"
# Beside it: multiply-adds are of two neighbouring outputs at a time, in float16 (`half_sums`).
HALF_SUMS = "tvm_sparse.half_sums"
# Attribute of a function whose weight is folded: the float32 weight (K, C / groups, R, S), no longer an argument.
WEIGHT_ATTRIBUTE = "tvm_sparse.weight"
# The extern call that stands for a load of that weight until it is folded.
WEIGHT_CALL = "tvm_sparse_weight"
# On a k-tile loop: copies run ahead in so many buffers of shared memory, 2 or more (`multistage_pipeline`).
PIPELINE_STAGES = "tvm_sparse.pipeline_stages"
# Beside it: an `Order`; `STRAIGHT` where there is none.
K_TILE_ORDER = "tvm_sparse.k_tile_order"
# Beside it: a `DependentLaunch`; `AT_EXIT` where there is none.
DEPENDENT_LAUNCH = "tvm_sparse.dependent_launch"
# On the loop that adds partial sums up, over a block's share of the output channels: the number of thread blocks that
# divide the input channels between them (`cluster_reduction`).
SPLIT_K = "tvm_sparse.split_k"

# On a loop of `SQUARE` turns whose body loads or stores a vector of as many floats, or a multiple, that lie apart, and
# their neighbours in the next turn: these are rows in memory and are transposed in registers (`transposed_columns`). So
# are vectors of which each `PAIR` of floats are stored as neighbours, beside those of the next turn.
TRANSPOSE, SQUARE, PAIR = "tvm_sparse.transpose", 4, 2
# On a loop: how many elements a vector of it has, which need not divide its turns (`overlapping_vectors`); beside
# `TRANSPOSE`, how many turns are transposed together.
VECTORS = "tvm_sparse.vectors"
# On a loop over tiles that multiply with the same block of weights: how many floats the block has. The next one, behind
# it in memory, is fetched meanwhile (`prefetched_weights`).
PREFETCH = "tvm_sparse.prefetch"

# On the block of a convolution's sums: [stride, dilation, rows of padding above the input, rows of the input]. What
# reads other rows is left out (`skipped_rows`).
INPUT_ROWS = "tvm_sparse.input_rows"

# Attribute of a function: conditions of expressions become branches outside of the loops that they do not ask for
# (`hoisted_conditions`).
HOIST = "tvm_sparse.hoist"

# Attribute of a function that launches kernels of a library of ours: all that compiling it needs
# (`scheduling.cuda.library.kernel_library`).
KERNEL_LIBRARY = "tvm_sparse.kernel_library"


class Order(IntEnum):
    """In which order a thread block goes through its k-tiles.

    STRAIGHT
        From the first to the last. Wins where code is executed many times, so that fetching it cold matters little, and
        where there is more of it than the caches behind a multiprocessor hold.
    ROTATED
        Each block starts at another k-tile and wraps around. Blocks that start together ask for the same cold code at
        the same time, and the cache that serves them delivers it once to each: 14 cycles an instruction on an H200.
        Rotated, each block finds most code already fetched by others, as long as one tile's code fits that cache (about
        150 KB): 128x128x3x3 at density 0.1 on 28x28 maps, batch 64, took 50 us rotated and 78 us straight. Where all
        k-tiles are in shared memory at once there is nothing to rotate, and blocks go straight.
    """

    STRAIGHT = 0
    ROTATED = 1


class DependentLaunch(IntEnum):
    """When the next kernel may start (programmatic dependent launch); it waits for this one's end in any case.

    AT_EXIT
        As thread blocks end. Wins where the multiprocessors are busy: blocks that start early go where there is room,
        so tiles of output channels mix within a GPC, which fetches more code.
    LAST_K_TILE
        When all blocks have come to their last k-tile. Wins where half of the multiprocessors are idle: 0.95 times as
        long warm, where it takes 1.13 to 1.23 times as long elsewhere (docs/lab/cuda-folded.md).
    AT_ONCE
        When all blocks have started. Each asks for so much shared memory that no multiprocessor gets more than its
        share of the blocks. Wins where code is cold and of one tile, or 32 KB at most: 0.72 to 1.02 times as long.
    """

    AT_EXIT = 0
    LAST_K_TILE = 1
    AT_ONCE = 2
