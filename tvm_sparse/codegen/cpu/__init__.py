"""Assembly of CPU kernels.

In: chains of multiply-adds that folding makes. Out: LLVM IR with a block of x86-64 assembly for each.
"""
