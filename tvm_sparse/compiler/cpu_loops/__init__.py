"""Schedules of what is between a CPU model's layers.

In: a module's functions. Out: the same, scheduled for threads and vectors.
"""
