"""TIR that all targets share.

In: marked loop nests. Out: straight-line multiply-adds with weights as immediates.
"""
