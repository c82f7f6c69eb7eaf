"""The function that launches the kernel of codegen/cuda/bottleneck.cu."""

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as T

from tvm_sparse.scheduling.annotations import KERNEL_LIBRARY
from tvm_sparse.scheduling.cuda.bottleneck.bottleneck import PACKED_BYTES, SHARED_BYTES, THREADS, Bottleneck
from tvm_sparse.scheduling.cuda.bottleneck.kernels import LIBRARIES, PARAMETERS
from tvm_sparse.scheduling.cuda.library.parameters import arguments
from tvm_sparse.target.gpu import GpuInfo


def bottleneck_call(bottleneck: Bottleneck, gpu: GpuInfo) -> tirx.PrimFunc:
    """A function of x (N, H, W, C), the `packed` weights, and y, of the shape of x."""
    spec, blocks = bottleneck.first, bottleneck.blocks(gpu)
    library = LIBRARIES[spec.dtype]
    shape = (spec.n, spec.h, spec.w, spec.c)
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name("main")
        x = T.arg("x", T.buffer(shape, spec.dtype, layout=None)).data
        weights = T.arg("weights", T.buffer((1, PACKED_BYTES // 16, 4), "int32", layout=None)).data
        y = T.arg("y", T.buffer(shape, spec.dtype, layout=None)).data
        numbers = [*arguments(PARAMETERS, bottleneck, blocks=blocks), blocks, 1, 1, THREADS, 1, SHARED_BYTES]
        values = [tirx.const(each, "int32") for each in numbers]
        T.evaluate(T.call_packed(library.names[0], x, weights, x, x, y, *values))
    return builder.get().with_attrs({"tirx.noalias": True, KERNEL_LIBRARY: library.text})
