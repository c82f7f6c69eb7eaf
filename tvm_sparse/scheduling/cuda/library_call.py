"""Functions that launch a kernel of a library (codegen/cuda/kernel_library.py) and have no code of their own."""

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as T

from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.annotations import KERNEL_LIBRARY


def library_call(
    spec: ConvSpec,
    library: str,
    kernel: str,
    rows: tirx.Var | int,
    numbers: Callable[[tirx.Var], Sequence[Any]],
) -> tirx.PrimFunc:
    """A function of x, weights int32 (`rows`, stride, 4), [bias], [residual] and y that launches a kernel.

    Any number of rows is taken where `rows` is a variable, and any stride. `numbers` of the stride are the integers
    that the kernel takes behind its tensors, then the launch: grid x, y, z, threads, blocks of a cluster, bytes of
    shared memory.
    """
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name("main")
        stride = tirx.Var("stride", "int32")
        shapes: dict[str, tuple[tuple[Any, ...], str]] = {
            "x": (spec.input_shape, spec.dtype),
            "weights": ((rows, stride, 4), "int32"),
            **({"bias": ((spec.k,), spec.dtype)} if spec.bias else {}),
            **({"residual": (spec.output_shape, spec.dtype)} if spec.residual else {}),
            "y": (spec.output_shape, spec.dtype),
        }
        data = {name: T.arg(name, T.buffer(*shape, layout=None)).data for name, shape in shapes.items()}
        # What the convolution lacks the kernel does not read.
        tensors = [data.get(name, data["x"]) for name in ("x", "weights", "bias", "residual", "y")]
        values = [tirx.const(each, "int32") if isinstance(each, int) else each for each in numbers(stride)]
        T.evaluate(T.call_packed(kernel, *tensors, *values))
    return builder.get().with_attrs({"tirx.noalias": True, KERNEL_LIBRARY: library})
