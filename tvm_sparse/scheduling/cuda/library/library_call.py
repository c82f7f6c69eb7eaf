"""Functions that launch a kernel of a library (codegen/cuda/kernel_library.py) and have no code of their own."""

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as T

from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.annotations import KERNEL_LIBRARY
from tvm_sparse.scheduling.cuda.library.kernel_library import KernelLibrary
from tvm_sparse.target.gpu import GpuInfo

# Bytes from which on CUDA has to be told how much shared memory a kernel may ask for.
LEAST_TOLD_BYTES = 48 << 10
# Copies of a kernel: the first for what CUDA need not be told, then so that 3, 2 and 1 blocks share a multiprocessor.
RESIDENT = (3, 2, 1)
NUMBER_OF_COPIES = 1 + len(RESIDENT)


class Copies(NamedTuple):
    """The shared memory that each copy of a kernel asks for, in ascending order; the first for less than CUDA is told.

    TVM tells CUDA when it first launches a kernel, and never again, so one that asked for more later would not run: a
    copy always asks for the same. That is as much as lets as many blocks share a multiprocessor as before.
    """

    sizes_bytes: tuple[int, ...]

    @classmethod
    def of(cls, gpu: GpuInfo) -> "Copies":
        """Those for a GPU."""
        return cls(tuple(gpu.shared_bytes // each - gpu.reserved_bytes for each in RESIDENT))

    def asked(self, needed_bytes: int) -> int:
        """What the copy that is launched asks for."""
        told = (each for each in self.sizes_bytes if needed_bytes <= each)
        return needed_bytes if needed_bytes < LEAST_TOLD_BYTES else next(told, self.sizes_bytes[-1])

    def call(self, kernel: str, arguments: Sequence[Any], needed_bytes: Any) -> None:
        """Launch the first copy of `kernel` that has `needed_bytes`, or the last one."""
        self._call(kernel, arguments, needed_bytes, 0)

    def _call(self, kernel: str, arguments: Sequence[Any], needed_bytes: Any, copy: int) -> None:
        asked = tirx.const(self.sizes_bytes[copy - 1], "int32") if copy else needed_bytes
        call = T.call_packed(kernel.format(copy), *arguments, asked)
        if copy == len(self.sizes_bytes):
            T.evaluate(call)
            return
        fits = needed_bytes < LEAST_TOLD_BYTES if copy == 0 else needed_bytes <= asked
        with T.If(fits):
            with T.Then():
                T.evaluate(call)
            with T.Else():
                self._call(kernel, arguments, needed_bytes, copy + 1)


def library_call(
    spec: ConvSpec,
    library: KernelLibrary,
    kernel: str,
    rows: tirx.Var | int,
    numbers: Callable[[tirx.Var], Sequence[Any]],
    copies: Copies | None = None,
    x: tuple[int, ...] = (),
    y: tuple[int, ...] = (),
    mark: str = "",
) -> tirx.PrimFunc:
    """A function of x, weights int32 (`rows`, stride, 4), [bias], [residual] and y that launches a kernel.

    Any number of rows is taken where `rows` is a variable, and any stride. `numbers` of the stride are the integers
    that the kernel takes behind its tensors, then the launch: grid x, y, z, threads, blocks of a cluster, bytes of
    shared memory. With `copies` the latter may be any number, and `kernel` has a place for a copy's number. `x`
    and `y`: the shapes of what is read and written, where these are not the convolution's own. `mark`: an attribute by
    which `spec_of` knows the function again.
    """
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name("main")
        stride = tirx.Var("stride", "int32")
        shapes: dict[str, tuple[tuple[Any, ...], str]] = {
            "x": (x or spec.input_shape, spec.dtype),
            "weights": ((rows, stride, 4), "int32"),
            **({"bias": ((spec.k,), spec.dtype)} if spec.bias else {}),
            **({"residual": (spec.output_shape, spec.dtype)} if spec.residual else {}),
            "y": (y or spec.output_shape, spec.dtype),
        }
        data = {name: T.arg(name, T.buffer(*shape, layout=None)).data for name, shape in shapes.items()}
        # What the convolution lacks the kernel does not read.
        tensors = [data.get(name, data["x"]) for name in ("x", "weights", "bias", "residual", "y")]
        values = [tirx.const(each, "int32") if isinstance(each, int) else each for each in numbers(stride)]
        if copies is None:
            T.evaluate(T.call_packed(kernel, *tensors, *values))
        else:
            copies.call(kernel, [*tensors, *values[:-1]], values[-1])
    marks = {mark: json.dumps(spec.to_json())} if mark else {}
    attributes = {"tirx.noalias": True, KERNEL_LIBRARY: library.only(kernel.format(0)).text, **marks}
    return builder.get().with_attrs(attributes)


def spec_of(func: tirx.PrimFunc, mark: str) -> ConvSpec | None:
    """The convolution of a function that was made with `mark`, None of another."""
    return ConvSpec.from_json(json.loads(str(func.attrs[mark]))) if mark in func.attrs else None
