"""Three convolutions of a residual network in one kernel: what codegen/cuda/bottleneck.cu is called with.

In: three convolutions, weights and biases. Out: whether a kernel computes them, how long that takes, and its call.
"""
