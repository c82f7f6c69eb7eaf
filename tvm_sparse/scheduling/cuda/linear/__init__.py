"""Linear layers on many images: what codegen/cuda/linear.cu is called with.

In: a linear layer and its weight. Out: a space of tilings, and for each the numbers and packed weights of its kernel.
"""
