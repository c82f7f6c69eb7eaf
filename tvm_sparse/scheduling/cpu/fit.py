"""What was fitted to times of CPU kernels: all constants of their time models, in one place.

`CpuFit` is of dense kernels, once for each kind of machine, `LineFit` of those with weights as data on whole cache
lines, `SparseFit` of folded ones and of others with weights as data. A new kind of machine is another `CpuFit` here,
and a line of `CpuFit.of`. Facts about machines that nobody has to measure, such as how many registers there are, are in
`target.cpu_info`. `scripts/table2/fit_cpu.py` says how far a log of a machine is from what is here.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

from tvm_sparse.target.cpu_info import CpuInfo


@dataclass(frozen=True)
class CpuFit:
    """A core's cycles and cache sizes, as kernels were seen to need them (docs/lab/cpu-layouts.md).

    Times of dense kernels are of an Intel Emerald Rapids, of folded ones and those of weights as data of a Zen 3. Only
    their ratios count, which other processors hardly change.

    Attributes
    ----------
    product_cycles
        Of a multiply-add of vectors in a dense kernel.
    loading_cycles
        To load a vector of weights for a register tile: 512x128x1x1 on 30x30 does 40.3 GMAC/s by tiles of six pixels
        with AVX2, 38.9 by five.
    weight_cycles
        To bring a vector of weights near, for all tiles of a task.
    copy_cycles
        To copy a vector of the input.
    store_cycles, transpose_cycles
        To store a vector of channels of a pixel as it is, or to transpose and store it.
    input_transform_cycles, output_transform_cycles
        Of Winograd's tile: of a vector of channels, and of a vector of filters.
    spilled_bytes, most_spilled
        Input of a task so large, which a level-2 cache does not hold, takes as long to read as to multiply by one tap,
        but no more than makes the products take so many times as long: 2048x512x3x3 on 28x28 takes 0.82 of the time by
        28 rows at once, not by 2.
    weights_bytes, block_bytes, wide_block_bytes
        Weights of all input channels that a register tile reads at once; of a block of them, and of one for the most
        vectors of filters. A level-1 cache holds them beside what tiles read.
    input_block_bytes, channel_bytes
        The same where channels of the input lie apart, with what a tile reads of each.
    fetched_lines
        Lines of the next block of weights that a tile fetches at most: with 37 a tile of 7x14 products waits for them,
        and 2048x512x1x1 on 7x7 takes 1.5 times as long as with 19.
    task_bytes
        What a task of a depthwise kernel reads at most: a share of a level-2 cache.
    depthwise_pixels
        Of a register tile of a depthwise kernel at most. With 16 registers 14 take up to 2.3 times as long as eight.
    """

    product_cycles: float = 0.5
    loading_cycles: float = 0.25
    weight_cycles: float = 3.0
    copy_cycles: float = 2.0
    store_cycles: float = 1.0
    transpose_cycles: float = 3.0
    input_transform_cycles: float = 70.0
    output_transform_cycles: float = 40.0
    spilled_bytes: int = 4 << 20
    most_spilled: float = 1.6
    weights_bytes: int = 32 << 10
    block_bytes: int = 24 << 10
    wide_block_bytes: int = 32 << 10
    input_block_bytes: int = 32 << 10
    channel_bytes: int = 128
    fetched_lines: int = 32
    task_bytes: int = 256 << 10
    depthwise_pixels: int = 14

    @classmethod
    @lru_cache
    def of(cls, cpu: CpuInfo) -> "CpuFit":
        """That of the machine's kind: by how many registers it has."""
        return MANY_REGISTERS if cpu.has_many_registers else FEW_REGISTERS


# AVX-512, and AVX2: pixels are loaded too, and a level-1 cache is smaller.
MANY_REGISTERS = CpuFit()
FEW_REGISTERS = replace(
    MANY_REGISTERS,
    loading_cycles=1.0,
    weights_bytes=16 << 10,
    block_bytes=16 << 10,
    wide_block_bytes=16 << 10,
    depthwise_pixels=8,
)


@dataclass(frozen=True)
class SparseFit:
    """Cycles of a core and what caches hold, of kernels that leave zeros out (a Zen 3; threads: an Emerald Rapids).

    Attributes
    ----------
    product_cycles
        Of a folded multiply-add of vectors. The others are of kernels timed with 4 and 16 threads
        (docs/lab/threads.md, "How do CPU kernels use many threads?").
    packing, packed_first
        How long packing a row takes, in the time of its multiply-adds, and how much longer where all is packed first
        and so leaves the caches.
    code_cycles_byte, code_bytes
        To read a byte of code that other layers displaced from the caches, and bytes of a non-zero's code.
    shared_cycles_byte
        To read a byte that another thread wrote.
    read_more
        How many times as much as it writes a layer reads whose threads have rows each.
    value_cycles
        In which a thread reads a non-zero and its place, which others read too.
    straddling, straddling_of_lines
        How many times as long kernels take whose rows do not begin with lines of a cache; and where vectors are as long
        as these and columns strided: 128x128x3x3 on 56x56, 90% zeros, 838 us with rows of 32 floats, 1,100 with rows of
        29.
    folded_ns, dense_ns, cycle_ns
        Nanoseconds of a multiply-add of a vector in a folded kernel and in the best dense library, and of a cycle, from
        default decisions at density 0.1 (docs/lab/cpu-sparse.md, "What was measured on a CPU?").
    code_ns, pair_ns, moved_ns_byte, near_bytes, between_ns_byte
        To fetch the code of a non-zero, and its value and place, once a call, a byte that a sparse kernel moves beyond
        those that are near, and one that what lies between layers does (ResNet-50's pool and classifier); of a level-3
        cache (docs/lab/cpu-sparse.md, "What bounds a layer within a network?").
    copied_ns_byte
        A byte of an output that kernels by rows keep and copy, where that is most of what they do
        (docs/lab/other-ranks.md, "What bounds the smallest gains?").
    cached_code, most_again
        With several threads code of so many non-zeros is fetched twice a call, of more up to so many times.
    linear_ratio
        A linear layer's non-zero and image against a dense weight and image, where both come from memory.
    """

    product_cycles: float = 0.7
    packing: float = 0.25
    packed_first: float = 0.15
    code_cycles_byte: float = 0.3
    code_bytes: int = 8
    shared_cycles_byte: float = 0.25
    read_more: int = 2
    value_cycles: float = 0.8
    straddling: float = 1.06
    straddling_of_lines: float = 1.2
    folded_ns: float = 0.42
    dense_ns: float = 0.2
    cycle_ns: float = 0.34
    code_ns: float = 10.0
    pair_ns: float = 0.35
    moved_ns_byte: float = 0.025
    near_bytes: int = 256 << 10
    copied_ns_byte: float = 0.03
    between_ns_byte: float = 0.075
    cached_code: int = 10_500
    most_again: float = 3.0
    linear_ratio: float = 4.0


SPARSE = SparseFit()


@dataclass(frozen=True)
class LineFit:
    """Cycles of a core (an Emerald Rapids) of kernels on whole cache lines: docs/lab/cpu-sparse.md.

    Attributes
    ----------
    product_cycles, miss_cycles, read_cycles
        Of a multiply-add of a vector in the level-1 cache, how many more if it reads level 2, and to read it once.
    nonzero_cycles, list_cycles
        Of a non-zero and of a list beside their multiply-adds.
    sum_cycles
        To read or write a vector of sums between steps.
    packed_cycles, run_cycles
        To pack a vector, and of a run of pixels that is packed or stored.
    step_bytes
        Of the level-1 cache, for what a step reads of a tile.
    """

    product_cycles: float = 0.5
    miss_cycles: float = 0.8
    read_cycles: float = 0.4
    nonzero_cycles: float = 1.0
    list_cycles: float = 12.0
    sum_cycles: float = 1.0
    packed_cycles: float = 1.0
    run_cycles: float = 1.5
    step_bytes: int = 32 << 10


LINES = LineFit()
