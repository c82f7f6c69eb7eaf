"""Tuning logs.

In: outcomes of trials. Out: records, one JSON line each, and the best of them for a layer.
"""
