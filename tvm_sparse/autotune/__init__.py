"""Searching.

In: layers. Out: records of trials, appended to a log as they end.
"""
