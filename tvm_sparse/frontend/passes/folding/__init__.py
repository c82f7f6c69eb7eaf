"""What need not be computed when a model runs.

In: a Relax module. Out: the same with fewer operators.
"""
