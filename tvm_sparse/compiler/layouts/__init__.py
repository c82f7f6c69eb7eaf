"""Where tensors lie in NHWC or in blocks of channels, and the memory between kernels.

In: a plan. Out: the plan with layouts; passes that keep them in Relax.
"""
