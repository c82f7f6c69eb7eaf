"""CUDA source to machine code: one call of the compiler, or one for each part of a source with large kernels."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import tvm_ffi
from tvm.support import nvcc
from tvm.target import Target

from tvm_sparse import environment
from tvm_sparse.pieces import Part, split

# Environment variable: compilers that one build runs side by side, at most; all cores where it is not set.
COMPILERS = "TVM_SPARSE_COMPILERS"
# The function that TVM calls with the CUDA source of a module.
_HOOK = "tvm_callback_cuda_compile"


@contextmanager
def in_parts(target: Target) -> Iterator[None]:
    """Have TVM build large kernels for `target` in parts, where nvcc is the compiler."""
    whole: Callable[[str], bytes] | None = tvm_ffi.get_global_func(_HOOK, allow_missing=True)
    if whole is None:
        yield
        return

    def compile_source(source: str) -> bytes:
        parts = split(source) if _can_link() else []
        return _compile_parts(parts, target) if len(parts) > 1 else whole(source)

    tvm_ffi.register_global_func(_HOOK, compile_source, override=True)
    try:
        yield
    finally:
        tvm_ffi.register_global_func(_HOOK, whole, override=True)


def _can_link() -> bool:
    """Whether nvcc compiles, and is not asked to leave its files in one folder, where parts would overwrite each other."""
    return os.environ.get("TVM_CUDA_COMPILE_MODE") == "nvcc" and "TVM_KERNEL_DUMP" not in os.environ


def compilers() -> int:
    """Compilers that one build runs side by side."""
    return int(os.environ.get(COMPILERS) or environment.available_cores())


def _compile_parts(parts: list[Part], target: Target) -> bytes:
    """The cubin of a module.

    Raises
    ------
    RuntimeError
        The compiler or the linker rejects it, in the words of TVM's own compilation.
    """
    with ThreadPoolExecutor(compilers()) as pool:
        jobs = [pool.submit(_compile, part, target) for part in parts]
        try:
            objects = [job.result() for job in jobs]
        finally:
            # After a failure nothing else is begun.
            pool.shutdown(wait=False, cancel_futures=True)
    return _link(objects, target)


def _compile(part: Part, target: Target) -> bytes:
    with target:
        options = ["-rdc=true", *part.options]
        return bytes(nvcc.compile_cuda(part.source, target_format="cubin", options=options, compiler="nvcc"))


def _link(objects: list[bytes], target: Target) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, f"part{index}.cubin") for index in range(len(objects))]
        for path, code in zip(paths, objects, strict=True):
            path.write_bytes(code)
        linked = Path(folder, "module.cubin")
        command = ["nvcc", "-dlink", "-cubin", "-arch", str(target.attrs["arch"]), "-o", str(linked), *map(str, paths)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"Compilation error:\n{done.stdout}{done.stderr}")
        return linked.read_bytes()
