"""A convolution of an image: tilings of the kernels in codegen/cuda/first.cu, which compute it on tensor cores.

In: a spec, decisions and a weight. Out: a kernel, its packed weight and its estimated time.
"""
