"""Let the largest of numbers that are all minus infinity be that, and the least of infinities infinity.

TVM starts from the largest finite number. Attention asks by it whether a mask leaves nothing in a row.
"""

import math

import tvm_ffi
from tvm import relax
from tvm.ir import Call, Expr
from tvm.tirx import FloatImm, PrimFunc


def _legalized(builder: relax.BlockBuilder, call: Call) -> Expr:
    made = call.op.get_attr("FLegalize")(builder, call)
    function = made.args[0]
    builder.update_func(function, _from_infinity(builder.get()[function]))
    return made


def _from_infinity(func: PrimFunc) -> PrimFunc:
    """`func` with infinities for its numbers: it has none but that from which the reduction starts."""
    return tvm_ffi.structural_map(
        func, (FloatImm, lambda each: FloatImm(each.ty.dtype, math.copysign(math.inf, each.value)))
    )


# Operators -> what makes functions of them.
INFINITE_EXTREMES = {"relax.max": _legalized, "relax.min": _legalized}
