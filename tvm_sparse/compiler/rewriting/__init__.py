"""Functions in the place of a model's operators.

In: a Relax module. Out: the module with calls of kernels and functions of ours.
"""
