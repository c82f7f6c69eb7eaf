"""Kernels that are written by hand: what the libraries are compiled to."""

import re
import shutil

import pytest
import record_registers
from record_registers import LIBRARIES, nvcc_version, recorded, source_hash

from tvm_sparse.codegen.cuda import kernel_library
from tvm_sparse.scheduling.cuda.library.kernel_library import KernelLibrary


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc on PATH to compile CUDA code")
@pytest.mark.parametrize("name", LIBRARIES)
def test_sums_are_registers(name: str) -> None:
    """As this nvcc was seen to compile it, or is seen to now."""
    found = recorded()
    if (found["nvcc"], found.get(name)) != (nvcc_version(), source_hash(name)):
        record_registers.check(name)


def test_the_record_is_of_these_sources() -> None:
    wanted = {name: source_hash(name) for name in LIBRARIES}
    found = {name: value for name, value in recorded().items() if name != "nvcc"}
    assert found == wanted, "run: python tests/codegen/record_registers.py"


def test_a_model_may_have_tensors_of_several_types() -> None:
    """No two libraries have a kernel of the same name."""
    names = [name for each in LIBRARIES.values() for name in each.names]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("library", LIBRARIES.values(), ids=LIBRARIES)
def test_a_library_can_be_compiled_from_its_text(library: KernelLibrary) -> None:
    """Each of our files is in it once, behind what its names are."""
    assert KernelLibrary.of_text(library.text) == library
    source = kernel_library.source(library)
    assert not re.search(r'#include "', source)
    assert source.count("struct Geometry {") == source.count("struct FastDivmod {") == 1
