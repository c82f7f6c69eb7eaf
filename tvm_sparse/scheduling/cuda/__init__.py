"""What the CUDA schedule spaces share.

In: a convolution, its zeros and a GPU. Out: spaces of tiles, their decisions, and estimated times.
"""
