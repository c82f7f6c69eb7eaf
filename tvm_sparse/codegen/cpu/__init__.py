"""Assembly of CPU kernels.

In: chains of multiply-adds that folding makes. Out: LLVM IR with a block of assembly, of x86-64 or AArch64, for each.
"""
