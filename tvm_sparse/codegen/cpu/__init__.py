"""TIR of CPU kernels.

In: scheduled loops. Out: loops with prefetches, shared tasks, transposes and long vectors, which LLVM does not find.
"""
