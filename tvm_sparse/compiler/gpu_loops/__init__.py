"""Schedules of what is between a GPU model's layers.

In: a module's functions. Out: the same, scheduled for blocks and threads.
"""
