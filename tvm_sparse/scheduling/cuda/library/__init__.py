"""What spaces of kernels written in CUDA C++ share.

In: a tiling of a family. Out: spaces with decisions, and calls of the kernel.
"""
