"""Weights as data, one filter or several at a time: what codegen/cuda/data.cu is called with.

In: a convolution and its weight. Out: a space of tilings, and for each the numbers and packed weights of its kernel.
"""
