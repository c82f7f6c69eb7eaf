"""An operator of TIR: a value between bounds, NaN where it is NaN, which asks for the value once.

Comparisons ask for it twice or four times, and TVM writes what is computed before in each of these places: the code of
a row of clips, as quantised models have them, doubles with each, and the time to simplify it grows by the square.
"""

from tvm import ir, tirx
from tvm.backend.cuda.op import cuda_func_call
from tvm.ir import Call, Expr, Op
from tvm.tirx import Broadcast
from tvm.tirx.expr import CallEffectKind
from tvm.tirx.op import register_intrin_lowering

_NAME = "tirx.tvm_sparse_bounded"
_CUDA_TYPES = {"float32": "float", "float16": "half", "float64": "double", "bfloat16": "nv_bfloat16"}
# `V` is a number or a vector of any type that TVM gives one.
_CUDA = """\
template <typename V> __forceinline__ __device__ V {name}(V values, {parameters}) {{
  {type}* each = ({type}*)&values;
  #pragma unroll
  for (int i = 0; i < {lanes}; ++i) each[i] = {chosen};
  return values;
}}
"""


def bounded(value: Expr, low: Expr, high: Expr | None = None) -> Expr:
    """`value` of a floating type, no less than `low` and no more than `high`, which are no NaN."""
    return Call(BOUNDED, [value, low, *([] if high is None else [high])], ret_ty=value.ty)


def _of_llvm(call: Call) -> Expr:
    value, low, *high = call.args
    above = tirx.call_llvm_pure_intrin(value.ty, "llvm.maximum", value, low)
    return tirx.call_llvm_pure_intrin(value.ty, "llvm.minimum", above, *high) if high else above


def _of_cuda(call: Call) -> Expr:
    value, *bounds = call.args
    element, lanes = value.ty.dtype.with_lanes(1), value.ty.dtype.lanes
    kind = _CUDA_TYPES[str(element)]
    name = f"tvm_sparse_bounded_{element}_{lanes}_{len(bounds)}"
    names, chosen = ["low", "high"][: len(bounds)], "each[i] < low ? low : "
    chosen += "each[i] > high ? high : each[i]" if len(bounds) == 2 else "each[i]"
    parameters = ", ".join(f"{kind} {each}" for each in names)
    source = _CUDA.format(name=name, parameters=parameters, type=kind, lanes=lanes, chosen=chosen)
    numbers = [each.value if isinstance(each, Broadcast) else each for each in bounds]
    return cuda_func_call(name, value, *numbers, source_code=source, return_type=str(value.ty.dtype))


def _register() -> Op:
    ir._ffi_api.RegisterOp(_NAME, "")
    ir.register_op_attr(_NAME, "TCallEffectKind", CallEffectKind.Pure.value)
    ir.register_op_attr(_NAME, "TVectorizable", True)
    ir.register_op_attr(_NAME, "TScriptPrinterName", "tvm_sparse_bounded")
    register_intrin_lowering(_NAME, "llvm", f=_of_llvm)
    register_intrin_lowering(_NAME, "cuda", f=_of_cuda)
    return Op.get(_NAME)


BOUNDED = _register()
