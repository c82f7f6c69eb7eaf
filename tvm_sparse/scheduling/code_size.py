"""Sizes of folded code from which on it is built in another way or not at all, each with its reason.

A compiler takes 0.3 ms (LLVM) to 1 ms (nvcc) for each multiply-add, and works on one kernel with one core; assembly
takes LLVM 10 us.
"""

# Multiply-adds of a kernel at most, vectors of any width counted once: two minutes of LLVM, and as much of nvcc on a
# few cores. More are refused before any code is written.
MAX_MULTIPLY_ADDS = 400_000
# The same where they are written as assembly: 20 s of one core, and 20 MB of code, at the least.
MAX_ASSEMBLED = 2_000_000
# Non-zeros of a weight from which on a CUDA kernel's code for each tile of output channels is marked as a region that
# can be compiled by itself: half a minute of one core. Below that all tiles share the first copies.
REGION_NON_ZEROS = 27_000
# Lines of a kernel's regions, about two a multiply-add, from which on they are compiled by themselves. Counted in the
# source, so that a kernel runs as fast wherever it is built.
SPLIT_LINES = 50_000
# Lines of a translation unit at least: smaller regions of one kernel share one, as each costs half a second to begin.
UNIT_LINES = 8_000
# Non-zeros of a weight from which on a CUDA candidate is built by so many compilers side by side, and fewer candidates
# at a time, so that no more compilers run than there are cores. From here on a search runs on a proxy layer, too.
LARGE_NON_ZEROS, COMPILERS_OF_LARGE = 100_000, 8


def why_not_folded(non_zeros: int, most: int = MAX_MULTIPLY_ADDS) -> str:
    """Why a weight of so many non-zeros becomes no code, as a sentence; empty if it does."""
    return f"{non_zeros} non-zeros would make too much code, at most {most} are folded" if non_zeros > most else ""
