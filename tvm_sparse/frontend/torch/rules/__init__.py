"""Which torch operators are imported, and in which forms.

In: a torch program. Out: nothing, or ModelError.
"""
