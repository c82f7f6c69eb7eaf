"""Rounding in vectors on a CPU. TVM has none of `nearbyint`: to quantise a tensor took ten times as long."""

from tvm import relax, te, tirx
from tvm.ir import Call, Expr


def _round(builder: relax.BlockBuilder, call: Call) -> Expr:
    if "float" not in str(call.ty.dtype):
        return call.op.get_attr("FLegalize")(builder, call)
    return builder.call_te(_rounded, call.args[0], primfunc_name_hint="round")


def _rounded(x: te.Tensor) -> te.Tensor:
    return te.compute(x.shape, lambda *index: tirx.call_llvm_pure_intrin(x.dtype, "llvm.rint", x(*index)))


# Operator -> what makes a function of it.
ROUNDING = {"relax.round": _round}
