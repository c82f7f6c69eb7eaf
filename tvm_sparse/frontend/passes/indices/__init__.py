"""Checks of the indices that a model's data hold.

In: a Relax module. Out: the same, which says what index was out of bounds.
"""
