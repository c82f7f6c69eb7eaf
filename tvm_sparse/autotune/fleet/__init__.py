"""Several devices that tune side by side.

In: layers, devices. Out: trials, from each device as it is done.
"""
