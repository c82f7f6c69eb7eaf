"""What tuning tells a display.

In: trials. Out: lines and numbers of progress.
"""
