"""Which channels of tensors need not exist.

In: a Relax module whose layers have their batch norms. Out: the same without filters and channels that add only zeros.
"""
