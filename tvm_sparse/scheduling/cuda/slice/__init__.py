"""Filters that share their positions, on tensor cores: what codegen/cuda/slice.cu is called with.

In: a convolution and its weight. Out: a space of tilings, what each should take, and its numbers and packed weights.
"""
