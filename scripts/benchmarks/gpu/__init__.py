"""Timing on a GPU.

In: operators and densities. Out: results of contenders timed in turns on the card.
"""
