"""Convolutions of planes that 64 filters share: what codegen/cuda/plane.cu is called with.

In: a convolution and its weight. Out: a space of tilings, and for each the numbers and packed weights of its kernel.
"""
