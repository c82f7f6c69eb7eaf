"""What rewriting TIR takes, whatever the target.

In: statements and indices. Out: the same in parts: constant offsets, thread axes, sequences.
"""
