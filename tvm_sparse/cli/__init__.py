"""The command line.

In: arguments. Out: a document as tables or JSON, and an exit code.
"""
