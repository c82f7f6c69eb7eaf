"""Relax passes, one a file, in the order in which `tvm_sparse.frontend.prepare` runs them.

guard_indices, fold_constants, settle_checks, fold_clips, einsum_as_matmul, name_convolutions, check_constants, as_2d,
fold_padding, trim_taps, fold_scaling, fold_batch_norm, drop_channels, store_half, find_convolutions; `relax_graph` is
the view of a Relax function that they share.
"""
