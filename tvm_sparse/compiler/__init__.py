"""Whole models.

In: a prepared model and a log. Out: a `CompiledModel`, and for each layer what was chosen and why.
"""
