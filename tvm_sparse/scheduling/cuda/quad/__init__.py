"""Any zeros on sparse tensor cores: what codegen/cuda/quad.cu is called with.

In: a convolution and its weight. Out: a space of tilings, and for each the numbers and packed weights of its kernel.
"""
