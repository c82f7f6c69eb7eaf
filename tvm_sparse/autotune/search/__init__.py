"""Which candidates of a layer are tried, in which order.

In: schedule spaces, trials. Out: candidates, and when to stop.
"""
