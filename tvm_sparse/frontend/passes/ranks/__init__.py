"""Convolutions that are not 2-D, and transposed ones, as 2-D convolutions.

In: a Relax module. Out: the same with 2-D convolutions, on tensors seen as maps (N, C, H, W).
"""
