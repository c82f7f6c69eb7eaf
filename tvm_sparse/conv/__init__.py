"""What a convolution is.

In: numbers. Out: `ConvSpec`, `SparsityPattern`, the float64 reference and dense TE computes.
"""
