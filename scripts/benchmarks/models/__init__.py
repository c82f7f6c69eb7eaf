"""Whole models on a GPU beside torch.

In: a network, a batch, a density, a tuning log. Out: rows of times, ours and torch's, taken in turns in one run.
"""
