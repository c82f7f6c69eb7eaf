"""Measuring against others.

In: operators and models. Out: times of our kernels beside the baselines', and reports of them.
"""
