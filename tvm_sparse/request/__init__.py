"""What the public functions take of a model, defined once.

In: a model, and options as users give them. Out: the target, the opened log, and the prepared model of each batch.
"""
