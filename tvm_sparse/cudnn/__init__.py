"""NVIDIA's cuDNN, called without torch.

In: a convolution, how it is to be computed, and arrays on a GPU. Out: the work, on the current stream.
"""
