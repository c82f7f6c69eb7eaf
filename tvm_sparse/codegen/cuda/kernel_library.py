"""CUDA kernels that are written by hand: compiled once for an architecture, called by name from generated host code."""

import json
import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path

import tvm
import tvm_ffi
from tvm.support import nvcc
from tvm.target import Target

from tvm_sparse.codegen.cuda.dependent_launch import LAUNCHED_EARLY, LAUNCHED_WITH_SHARED
from tvm_sparse.codegen.cuda.nvcc import cuda_compiler, leaves_files, toolchain
from tvm_sparse.codegen.kernel_cache import KernelCache, content_key
from tvm_sparse.scheduling.annotations import KERNEL_LIBRARY
from tvm_sparse.scheduling.cuda.library.kernel_library import KernelLibrary
from tvm_sparse.target.cpu import compiler_count

FOLDER = Path(__file__).parent
INCLUDED = re.compile(r'^#include "(?P<name>.+)"\n', re.MULTILINE)
# Included where a library's own declarations belong.
PARAMETERS = "parameters.cuh"
_CREATE = "ffi.Module.create.cuda"
# In the order in which a launch passes their values.
_LAUNCH = ["blockIdx.x", "blockIdx.y", "blockIdx.z", "threadIdx.x", "clusterCtaIdx.x"]


def launched_libraries(module: tvm.IRModule) -> list[str]:
    """The libraries whose kernels the functions of `module` launch, each as its `text`."""
    attributes = (getattr(func, "attrs", None) or {} for func in module.functions.values())
    return sorted({str(each[KERNEL_LIBRARY]) for each in attributes if KERNEL_LIBRARY in each})


def source(library: KernelLibrary) -> str:
    """The CUDA source of a library: its file, each of our headers where that is first included, and its kernels."""
    included: set[str] = set()

    def text(name: str) -> str:
        if name == PARAMETERS:
            return library.parameters
        return INCLUDED.sub(lambda line: once(line["name"]), (FOLDER / name).read_text())

    def once(name: str) -> str:
        is_new = name not in included
        included.add(name)
        return text(name) if is_new else ""

    defined = "".join(f"#define {each}\n" for each in library.defined)
    kernels = "".join(f"KERNEL({each.name}, {each.blocks}, {each.function})\n" for each in library.kernels)
    return f"{defined}{text(library.file)}namespace tvm_sparse {{\n{kernels}}}\n"


def built(texts: Sequence[str], target: Target) -> list[tvm.runtime.Module]:
    """Machine code of the libraries of these texts, to be imported by who calls their kernels, and exported with it.

    They are compiled side by side, each on one core: with ``--split-compile`` nvcc 13.0 keeps sums in local memory, and
    convolutions on tensor cores took up to three times as long.
    """
    if not texts:
        return []
    with ThreadPoolExecutor(compiler_count()) as pool:
        return [each for modules in pool.map(partial(_modules, target=target), texts) for each in modules]


@cache
def _modules(text: str, target: Target) -> tuple[tvm.runtime.Module, ...]:
    """A module for each copy; none where TVM has no CUDA runtime, so that what it compiles is source alone."""
    create = tvm_ffi.get_global_func(_CREATE, allow_missing=True)
    if create is None:
        return ()
    library = KernelLibrary.of_text(text)
    code, first = _code(library, target), library.copies[0]
    parameters = ["handle"] * 5 + ["int32"] * library.integers
    tags = [*_LAUNCH, LAUNCHED_EARLY, LAUNCHED_WITH_SHARED]
    modules = []
    for copy in library.copies:
        kernels = [each.replace(first, copy) for each in library.names]
        facts = {each: {"name": each, "arg_types": parameters, "launch_param_tags": tags} for each in kernels}
        metadata = {"tvm_version": tvm.__version__, "func_info": facts}
        facts_of = tvm_ffi.get_global_func("runtime.LoadMetaDataFromJSON")(json.dumps(metadata))
        modules.append(create(code.replace(first.encode(), copy.encode()), "cubin", facts_of, {}))
    return tuple(modules)


def _code(library: KernelLibrary, target: Target) -> bytes:
    """The library's machine code, compiled once for an architecture and compiler and kept on disk."""
    text, arch = source(library), _arch(library, target)
    with cuda_compiler(target):
        cache = None if leaves_files() else KernelCache.of_user()
        key = content_key({"library": library.name, "source": text, "arch": arch, "toolchain": toolchain()})
        if cache is None:
            return _compiled(text, arch)
        code = cache.read(key)
        if code is None:
            code = _compiled(text, arch)
            cache.write(key, code)
    return code


def _arch(library: KernelLibrary, target: Target) -> str:
    return str(target.attrs["arch"]) + ("a" if library.has_warpgroups else "")


def _compiled(text: str, arch: str) -> bytes:
    return bytes(
        nvcc.compile_cuda(text, target_format="cubin", arch=arch, compiler=os.environ["TVM_CUDA_COMPILE_MODE"])
    )
