"""Linear layers on many images on tensor cores: what codegen/cuda/linear_tensor.cu is called with.

In: a linear layer and its weight. Out: a space of tilings, and for each the numbers and packed weights of its kernel.
"""
