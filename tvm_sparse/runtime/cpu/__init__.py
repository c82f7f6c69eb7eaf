"""Calls on a CPU, from any thread.

In: an executable, tensors. Out: tensors; cores that calls share.
"""
