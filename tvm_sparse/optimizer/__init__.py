"""The whole way of a model within a time: tune where the time goes, then compile.

In: a model and minutes. Out: the compiled model, and records in the user's log.
"""
