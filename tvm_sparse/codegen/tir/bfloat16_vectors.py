"""Vectors of one bfloat16 number as vectors of its bits: TVM's BF16StorageLegalize overlooks these, and then stops."""

import tvm_ffi
from tvm import tirx
from tvm.ir import Expr

from tvm_sparse.codegen.tir.tir_builder import function_pass
from tvm_sparse.conv.dtypes import BFLOAT16


@function_pass("Bfloat16Vectors")
def bfloat16_vectors(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func` for BF16StorageLegalize."""
    return func.with_body(tvm_ffi.structural_map(func.body, (tirx.Broadcast, _of_bits)))


def _of_bits(vector: tirx.Broadcast) -> Expr:
    if str(vector.value.ty.dtype) != BFLOAT16:
        return vector
    bits = tirx.Broadcast(tirx.reinterpret("uint16", vector.value), vector.lanes)
    return tirx.reinterpret(f"{BFLOAT16}x{vector.lanes}", bits)
