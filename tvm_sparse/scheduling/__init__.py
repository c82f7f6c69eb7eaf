"""What schedule spaces are made of.

In: a convolution, its zeros and a target. Out: `Space`, and with decisions and a weight a scheduled `Kernel`.
"""
