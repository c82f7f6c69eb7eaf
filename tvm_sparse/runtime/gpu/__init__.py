"""Calls on an NVIDIA GPU, from any thread and on any stream.

In: an executable, tensors. Out: tensors; graphs that are replayed.
"""
