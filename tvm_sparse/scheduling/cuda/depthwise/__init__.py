"""Depthwise convolutions in half precision: tilings of the kernels in codegen/cuda/depthwise.cu.

In: a spec, decisions and a weight. Out: a kernel, its packed weight and its estimated time.
"""
