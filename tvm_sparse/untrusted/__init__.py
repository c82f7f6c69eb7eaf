"""What comes from outside, read in seconds and in bounded memory.

In: paths, text. Out: bytes of regular files, JSON values, whole numbers; or OSError and ValueError with a reason.
"""
