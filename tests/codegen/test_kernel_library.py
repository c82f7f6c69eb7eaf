"""Kernels that are written by hand: what the libraries are compiled to."""

import re
import shutil

import pytest
from tvm.target import Target

from tvm_sparse.codegen.cuda import kernel_library
from tvm_sparse.codegen.cuda.cubin import function_bytes, sections
from tvm_sparse.codegen.cuda.nvcc import cuda_compiler

TARGET = Target({"kind": "cuda", "arch": "sm_90"})
# An attribute of a function in a cubin: its stack frame, a symbol and bytes.
FRAME = re.compile(rb"\x04\x11\x08\x00.{4}(.{4})", re.DOTALL)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc on PATH to compile CUDA code")
@pytest.mark.parametrize("name", kernel_library.LIBRARIES)
def test_sums_are_registers(name: str) -> None:
    """With the options that users' kernels are compiled with; a stack frame makes a kernel several times slower."""
    with cuda_compiler(TARGET):
        code = kernel_library._compiled(kernel_library.source(name), kernel_library._arch(name, TARGET))
    assert function_bytes(code).keys() == set(kernel_library.LIBRARIES[name].kernels)
    frames = [int.from_bytes(each, "little") for each in FRAME.findall(sections(code)[".nv.info"])]
    assert len(frames) == len(kernel_library.LIBRARIES[name].kernels) and not any(frames)


def test_a_model_may_have_tensors_of_several_types() -> None:
    """No two libraries have a kernel of the same name."""
    names = [name for each in kernel_library.LIBRARIES.values() for name in each.kernels]
    assert len(names) == len(set(names))
