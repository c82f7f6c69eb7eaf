"""In: a compiled model and what it was compiled from. Out: how far their results differ on a random input.

A difference is settled before the model is refused: operator by operator, and by how far the model's own results move.
"""
