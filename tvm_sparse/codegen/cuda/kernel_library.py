"""CUDA kernels that are written by hand: compiled once for an architecture, called by name from generated host code."""

import json
import os
from functools import cache
from pathlib import Path
from typing import NamedTuple

import tvm
import tvm_ffi
from tvm.support import nvcc
from tvm.target import Target

from tvm_sparse.codegen.cuda.dependent_launch import LAUNCHED_EARLY, LAUNCHED_WITH_SHARED
from tvm_sparse.codegen.cuda.nvcc import cuda_compiler, leaves_files, toolchain
from tvm_sparse.codegen.kernel_cache import KernelCache, content_key
from tvm_sparse.conv.dtypes import BFLOAT16, FLOAT16, FLOAT32
from tvm_sparse.scheduling.annotations import KERNEL_LIBRARY
from tvm_sparse.scheduling.cuda.data import geometry as data_geometry
from tvm_sparse.scheduling.cuda.data import tiling as data_tiling
from tvm_sparse.scheduling.cuda.library.library_call import NUMBER_OF_COPIES
from tvm_sparse.scheduling.cuda.linear import tiling as linear_tiling
from tvm_sparse.scheduling.cuda.linear_tensor import tiling as linear_tensor_tiling
from tvm_sparse.scheduling.cuda.plane import tiling as plane_tiling
from tvm_sparse.scheduling.cuda.quad import tiling as quad_tiling
from tvm_sparse.scheduling.cuda.slice import geometry as slice_geometry
from tvm_sparse.scheduling.cuda.slice import tiling as slice_tiling

_CREATE = "ffi.Module.create.cuda"
# In the order in which a launch passes their values.
_LAUNCH = ["blockIdx.x", "blockIdx.y", "blockIdx.z", "threadIdx.x", "clusterCtaIdx.x"]


def library_names(module: tvm.IRModule) -> list[str]:
    """Names of the libraries whose kernels the functions of `module` launch."""
    attributes = (getattr(func, "attrs", None) or {} for func in module.functions.values())
    return sorted({str(each[KERNEL_LIBRARY]) for each in attributes if KERNEL_LIBRARY in each})


class _Library(NamedTuple):
    """A library: its file, names defined for it, its kernels, and how many integers each takes behind its tensors.

    Of `copies` that differ by a digit of their kernels' names the code is compiled once. With `has_warpgroups` these
    multiply, which only GPUs of exactly the target's architecture have (``sm_90a``). `headers` come before the file.
    """

    file: str
    defined: tuple[str, ...]
    kernels: list[str]
    integers: int
    copies: int = 1
    has_warpgroups: bool = False
    headers: tuple[str, ...] = ()

    @property
    def files(self) -> tuple[str, ...]:
        """Those that its source consists of."""
        shared = ("data_primitives.cuh", "warpgroup_primitives.cuh")
        return (*shared[: 1 + self.has_warpgroups], *self.headers, self.file)


def _libraries() -> dict[str, _Library]:
    """Every library by its name."""
    found = {}
    for name, defined in ((data_tiling.SINGLE_LIBRARY, ()), (data_tiling.VECTOR_LIBRARY, ("TVM_SPARSE_VECTORS",))):
        kernels = [
            data_tiling.kernel_name(shared, pixels + 1, step)
            for shared, most in data_tiling.MAX_LANE_PIXELS.items()
            for pixels in range(most)
            for step in (1, 2)
            if data_tiling.library_of(shared) == name
        ]
        found[name] = _Library("data.cu", defined, kernels, 1 + len(data_geometry.Geometry._fields))
    of_quads = [quad_tiling.kernel_name(m, n) for m, some in quad_tiling.PIXELS.items() for n in some]
    integers = 2 + len(quad_tiling.Geometry._fields)
    found[quad_tiling.LIBRARY] = _Library("quad.cu", (), of_quads, integers, has_warpgroups=True)
    of_tiles = [
        linear_tensor_tiling.kernel_name(f, each) for f in linear_tensor_tiling.FILTERS for each in (False, True)
    ]
    integers = len(linear_tensor_tiling.Geometry._fields)
    found[linear_tensor_tiling.LIBRARY] = _Library("linear_tensor.cu", (), of_tiles, integers, has_warpgroups=True)
    half = ("TVM_SPARSE_HALF",)
    types: dict[str, tuple[str, ...]] = {FLOAT32: (), FLOAT16: half, BFLOAT16: (*half, "TVM_SPARSE_BFLOAT16")}
    for dtype, names in types.items():
        tiles = slice_tiling.N_TILES.items()
        kernels = [slice_tiling.kernel_name(m, n, dtype) for m, some in tiles for n in some]
        integers = 2 + len(slice_geometry.Geometry._fields)
        found[slice_tiling.LIBRARIES[dtype]] = _Library("slice.cu", names, kernels, integers, NUMBER_OF_COPIES)
        of_planes = [plane_tiling.kernel_name(each, dtype) for each in plane_tiling.PIXELS[dtype]]
        integers = 1 + len(plane_tiling.Geometry._fields)
        headers = ("plane_weights.cuh", "plane_inputs.cuh")
        found[plane_tiling.LIBRARIES[dtype]] = _Library(
            "plane.cu", names, of_planes, integers, has_warpgroups=True, headers=headers
        )
        images = linear_tiling.LANE_IMAGES.items()
        of_linear = [linear_tiling.kernel_name(p, v, dtype) for v, some in images for p in some]
        integers = 1 + len(linear_tiling.Geometry._fields)
        found[linear_tiling.LIBRARIES[dtype]] = _Library("linear.cu", names, of_linear, integers)
    return found


LIBRARIES = _libraries()


def source(name: str) -> str:
    """The CUDA source of a library."""
    library = LIBRARIES[name]
    defined = "".join(f"#define {each}\n" for each in library.defined)
    folder = Path(__file__).parent
    return defined + "".join((folder / each).read_text() for each in library.files)


@cache
def library(name: str, target: Target) -> tuple[tvm.runtime.Module, ...]:
    """The machine code of a library for `target`, to be imported by who calls its kernels; it can be exported with it.

    A module for each copy; none where TVM has no CUDA runtime, so that what it compiles is source alone.
    """
    create = tvm_ffi.get_global_func(_CREATE, allow_missing=True)
    if create is None:
        return ()
    found, code = LIBRARIES[name], _code(name, target)
    parameters = ["handle"] * 5 + ["int32"] * found.integers
    tags = [*_LAUNCH, LAUNCHED_EARLY, LAUNCHED_WITH_SHARED]
    modules = []
    for copy in range(found.copies):
        kernels = [_copied(each.encode(), copy).decode() for each in found.kernels]
        facts = {each: {"name": each, "arg_types": parameters, "launch_param_tags": tags} for each in kernels}
        metadata = {"tvm_version": tvm.__version__, "func_info": facts}
        facts_of = tvm_ffi.get_global_func("runtime.LoadMetaDataFromJSON")(json.dumps(metadata))
        modules.append(create(_copied(code, copy), "cubin", facts_of, {}))
    return tuple(modules)


def _copied(code: bytes, copy: int) -> bytes:
    """Machine code, or a name, with a copy's kernels: names in an ELF file may change if they stay as long."""
    first, other = (slice_tiling.COPY.format(each).encode() for each in (0, copy))
    return code.replace(first, other)


def _code(name: str, target: Target) -> bytes:
    """The library's machine code, compiled once for an architecture and compiler and kept on disk."""
    text, arch = source(name), _arch(name, target)
    with cuda_compiler(target):
        cache = None if leaves_files() else KernelCache.of_user()
        key = content_key({"library": name, "source": text, "arch": arch, "toolchain": toolchain()})
        if cache is None:
            return _compiled(text, arch)
        code = cache.read(key)
        if code is None:
            with cache.turn():
                code = cache.read(key)
                if code is None:
                    code = _compiled(text, arch)
                    cache.write(key, code)
    return code


def _arch(name: str, target: Target) -> str:
    return str(target.attrs["arch"]) + ("a" if LIBRARIES[name].has_warpgroups else "")


def _compiled(text: str, arch: str) -> bytes:
    # On one core, which takes ten seconds and more: with ``--split-compile`` nvcc 13.0 keeps sums in local memory, and
    # convolutions on tensor cores took up to three times as long.
    return bytes(
        nvcc.compile_cuda(text, target_format="cubin", arch=arch, compiler=os.environ["TVM_CUDA_COMPILE_MODE"])
    )
