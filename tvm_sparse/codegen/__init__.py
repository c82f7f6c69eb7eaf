"""Machine code.

In: a scheduled PrimFunc and its weight. Out: a module of machine code without weights or indices.
"""
