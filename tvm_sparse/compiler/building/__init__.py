"""Kernels and libraries, each made once.

In: a plan. Out: kernels, verified and built; libraries that were built before.
"""
