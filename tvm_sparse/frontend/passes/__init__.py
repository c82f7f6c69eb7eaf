"""Relax passes, one a file, in the order `tvm_sparse.model` runs them.

fold_constants, name_convolutions, fold_padding, fold_batch_norm, find_convolutions, replace_convolutions, and while TVM
lowers the rest, schedule_matmul; `graph` is the view of a Relax function that they share.
"""
