"""CUDA kernels that are written by hand: compiled once for an architecture, called by name from generated host code."""

import json
import os
from functools import cache
from pathlib import Path

import tvm
import tvm_ffi
from tvm.support import nvcc
from tvm.target import Target

from tvm_sparse.codegen.cuda.dependent_launch import LAUNCHED_EARLY, LAUNCHED_WITH_SHARED
from tvm_sparse.codegen.cuda.nvcc import cuda_compiler, leaves_files, toolchain
from tvm_sparse.codegen.kernel_cache import KernelCache, content_key
from tvm_sparse.scheduling.annotations import KERNEL_LIBRARY
from tvm_sparse.scheduling.cuda.data_geometry import Geometry
from tvm_sparse.scheduling.cuda.data_tiling import MAX_LANE_PIXELS, VECTOR_LIBRARY, kernel_name, library_of

_CREATE = "ffi.Module.create.cuda"
# In the order in which a launch passes their values.
_LAUNCH = ["blockIdx.x", "blockIdx.y", "blockIdx.z", "threadIdx.x", "clusterCtaIdx.x"]


def library_names(module: tvm.IRModule) -> list[str]:
    """Names of the libraries whose kernels the functions of `module` launch."""
    attributes = (getattr(func, "attrs", None) or {} for func in module.functions.values())
    return sorted({str(each[KERNEL_LIBRARY]) for each in attributes if KERNEL_LIBRARY in each})


def source(name: str) -> str:
    """The CUDA source of a library."""
    defined = "#define TVM_SPARSE_VECTORS\n" if name == VECTOR_LIBRARY else ""
    return defined + Path(__file__).with_name("sparse_data.cu").read_text()


@cache
def library(name: str, target: Target) -> tvm.runtime.Module | None:
    """The machine code of a library for `target`, to be imported by who calls its kernels; it can be exported with it.

    None where TVM has no CUDA runtime, so that what it compiles is source alone.
    """
    create = tvm_ffi.get_global_func(_CREATE, allow_missing=True)
    if create is None:
        return None
    code = _code(name, target)
    parameters = ["handle"] * 5 + ["int32"] * (1 + len(Geometry._fields))
    tags = [*_LAUNCH, LAUNCHED_EARLY, LAUNCHED_WITH_SHARED]
    kernels = [
        kernel_name(shared, pixels + 1, step)
        for shared, most in MAX_LANE_PIXELS.items()
        for pixels in range(most)
        for step in (1, 2)
        if library_of(shared) == name
    ]
    facts = {each: {"name": each, "arg_types": parameters, "launch_param_tags": tags} for each in kernels}
    metadata = {"tvm_version": tvm.__version__, "func_info": facts}
    facts_of = tvm_ffi.get_global_func("runtime.LoadMetaDataFromJSON")(json.dumps(metadata))
    return create(code, "cubin", facts_of, {})


def _code(name: str, target: Target) -> bytes:
    """The library's machine code, compiled once for an architecture and compiler and kept on disk."""
    text = source(name)
    with cuda_compiler(target):
        cache = None if leaves_files() else KernelCache.of_user()
        arch = str(target.attrs["arch"])
        key = content_key({"library": name, "source": text, "arch": arch, "toolchain": toolchain()})
        code = cache.read(key) if cache is not None else None
        if code is None:
            mode = os.environ["TVM_CUDA_COMPILE_MODE"]
            code = bytes(nvcc.compile_cuda(text, target_format="cubin", options=[], compiler=mode))
            if cache is not None:
                cache.write(key, code)
    return code
