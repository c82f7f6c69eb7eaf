"""Kernels that are written by hand: what the libraries are compiled to."""

import re
import shutil
import threading

import pytest
import record_registers
from record_registers import LIBRARIES, nvcc_version, recorded, source_hash

from tvm_sparse.codegen.cuda import kernel_library
from tvm_sparse.scheduling.cuda.library.kernel_library import KernelLibrary
from tvm_sparse.target.resolve import resolve_target


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


@pytest.mark.parametrize("library", LIBRARIES.values(), ids=LIBRARIES)
def test_a_kernel_can_be_compiled_alone(library: KernelLibrary) -> None:
    last = library.kernels[-1]
    source = kernel_library.source(library.only(last.name))
    assert re.findall(r"^KERNEL\((\w+),", source, re.MULTILINE) == [last.name]
    with pytest.raises(ValueError, match="not enough values"):
        library.only("no_such_kernel")


def test_kernels_are_compiled_side_by_side_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both compilers run at a time, and neither again."""
    both, sources = threading.Barrier(2, timeout=60), []

    def compiled(source: str, arch: str) -> bytes:
        both.wait()
        sources.append(source)
        return b"code"

    monkeypatch.setattr(kernel_library, "_compiled", compiled)
    monkeypatch.setattr(kernel_library, "compiler_count", lambda: 2)
    monkeypatch.setattr(kernel_library.tvm_ffi, "get_global_func", lambda *_, **__: lambda *_words: _words)
    target = resolve_target({"kind": "cuda", "arch": "sm_90"})
    data = LIBRARIES["data"]
    texts = [data.only(name).text for name in data.names[:2]]
    found = kernel_library.built(texts, target)
    assert [code for code, *_ in found] == [b"code"] * 2 and len(set(sources)) == 2
    assert kernel_library.built(texts, target) == found and len(sources) == 2
    kernel_library._modules.cache_clear()
    assert len(kernel_library.built(texts, target)) == 2 and len(sources) == 2
    kernel_library._modules.cache_clear()
