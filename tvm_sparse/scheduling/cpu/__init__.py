"""Spaces of CPU kernels: register tiles, vectors, threads.

In: a convolution, its zeros, a target. Out: spaces with decisions.
"""
