"""Building and running candidates in other processes.

In: a candidate kernel. Out: an `Outcome`: verified and timed beside the dense kernel, or why not.
"""
