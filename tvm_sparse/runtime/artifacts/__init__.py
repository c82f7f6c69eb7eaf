"""Compiled models as folders.

In: a compiled model. Out: a folder; a compiled model from one that is whole.
"""
