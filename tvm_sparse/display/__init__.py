"""What people see while work goes on.

In: numbers and lines. Out: text on standard error, live where that is a terminal or a notebook.
"""
