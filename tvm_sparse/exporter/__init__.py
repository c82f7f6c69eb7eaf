"""The step to programs without Python.

In: an artifact for a CPU. Out: a plan, a library of kernels, and the C library that runs them.
"""
