"""CUDA source to machine code: one call of the compiler, or one for each part of a source with large kernels."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import tvm_ffi
from tvm.support import nvcc
from tvm.target import Target

from tvm_sparse import environment
from tvm_sparse.pieces import Part, split
from tvm_sparse.registers import as_variables

# What TVM calls with the CUDA source of a module, first the one, then the other.
_EDIT, _COMPILE = "tvm_callback_cuda_postproc", "tvm_callback_cuda_compile"


@contextmanager
def hooks(target: Target) -> Iterator[None]:
    """Have TVM build CUDA code faster: accumulators as variables, and large kernels in parts where nvcc compiles."""
    whole = tvm_ffi.get_global_func(_COMPILE, allow_missing=True)

    def compile_source(source: str) -> bytes:
        parts = split(source) if _can_link() else []
        return _compile_parts(parts, target) if len(parts) > 1 else whole(source)

    with _registered(_EDIT, as_variables), _registered(_COMPILE, compile_source) if whole else nullcontext():
        yield


@contextmanager
def _registered(name: str, function: Callable[..., Any]) -> Iterator[None]:
    """`function` as TVM's global function `name`, for a while."""
    before = tvm_ffi.get_global_func(name, allow_missing=True)
    tvm_ffi.register_global_func(name, function, override=True)
    try:
        yield
    finally:
        if before is None:
            tvm_ffi.registry.remove_global_func(name)
        else:
            tvm_ffi.register_global_func(name, before, override=True)


def _can_link() -> bool:
    """Whether nvcc compiles, and leaves no files in one folder, where parts would overwrite each other."""
    return os.environ.get("TVM_CUDA_COMPILE_MODE") == "nvcc" and "TVM_KERNEL_DUMP" not in os.environ


def _compile_parts(parts: list[Part], target: Target) -> bytes:
    """The cubin of a module.

    Raises
    ------
    RuntimeError
        The compiler or the linker rejects it, in the words of TVM's own compilation.
    """
    with ThreadPoolExecutor(environment.compilers()) as pool:
        jobs = [pool.submit(_compile, part, target) for part in parts]
        done, _ = wait(jobs, return_when=FIRST_EXCEPTION)
        # After a failure nothing else is begun.
        pool.shutdown(wait=True, cancel_futures=True)
    complaints = [str(job.exception()) for job in done if job.exception() is not None]
    if complaints:
        # A new exception: that of the job would keep its folder of temporary files.
        del jobs, done
        raise RuntimeError(complaints[0])
    return _link([job.result() for job in jobs], target)


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
