"""Torch programs in the operators that TVM reads right.

In: a torch program. Out: the same network in other operators.
"""
