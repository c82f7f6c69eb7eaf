"""Compiled models.

In: an executable or an artifact. Out: the caller's tensors.
"""
