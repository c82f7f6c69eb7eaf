"""TE compute of a convolution whose weights are all zero: its bias, with residual and ReLU."""

from dataclasses import replace

from tvm import tirx

from tvm_sparse.conv.conv2d import WEIGHT, prim_func
from tvm_sparse.conv.dtypes import FLOAT32
from tvm_sparse.conv.nchwc import NCHW, Layouts, blocked_arguments, output
from tvm_sparse.conv.spec import ConvSpec


def conv2d_bias(spec: ConvSpec, layouts: Layouts = NCHW) -> tirx.PrimFunc:
    """The stage ``out``, which reads neither the input, though that is an argument, nor a weight, which is none."""
    if layouts.y:
        spec = replace(spec, k=layouts.filled(spec.k))
    arguments = blocked_arguments(spec, layouts)
    del arguments[WEIGHT]
    return prim_func(arguments, output(spec, layouts, arguments, lambda *_: tirx.const(0.0, FLOAT32)))
