"""Rows of padding that a convolution does not multiply with: whether there are any is asked once a row of taps.

A 3x3 kernel of dilation 12 on a map of 14x14 reads 18 rows of its input for 14 of its output, and 24 of padding.
"""

import tvm_ffi
from tvm import tirx
from tvm.s_tir import SBlockRealize

from tvm_sparse.codegen.tir.tir_builder import function_pass
from tvm_sparse.scheduling.annotations import INPUT_ROWS

# Axes of such a block: the row of the output, and that of taps.
_Y, _R = 2, -2


@function_pass("SkippedRows")
def skipped_rows(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func`, of blocks, in which those with `INPUT_ROWS` run where they read the input."""
    return func.with_body(tvm_ffi.structural_map(func.body, (SBlockRealize, _skipping), order="post"))


def _skipping(node: SBlockRealize) -> SBlockRealize:
    if INPUT_ROWS not in node.block.annotations:
        return node
    stride, dilation, top, height = (int(each) for each in node.block.annotations[INPUT_ROWS])
    row = node.iter_values[_Y] * stride + node.iter_values[_R] * dilation
    return SBlockRealize(node.iter_values, tirx.all(node.predicate, row >= top, row < top + height), node.block)
