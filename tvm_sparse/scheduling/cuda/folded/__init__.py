"""Kernels whose weights are instructions: their tiles, what bounds them, and how long they should take.

In: a convolution, its zeros and a GPU. Out: spaces of tiles and pipelines, scheduled, with estimated times.
"""
