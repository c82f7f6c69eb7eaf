"""CUDA source to machine code: one call of the compiler, or one for each part of a source with large kernels."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm.support import nvcc
from tvm.target import Target

from tvm_sparse.codegen.cuda.separate_compilation import Part, split
from tvm_sparse.errors import BuildError
from tvm_sparse.target.cpu import compiler_count

# What TVM calls with the CUDA source of a module, first the one, then the other.
_EDIT, _COMPILE = "tvm_callback_cuda_postproc", "tvm_callback_cuda_compile"
_ARRAY = re.compile(r"\balignas\(\d+\) (?P<type>float|int) (?P<name>\w+)\[(?P<length>\d+)\];")
# More elements are no registers anyway.
_MAX_LENGTH = 255


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
def source_only() -> Iterator[None]:
    """Have TVM make the CUDA source that `hooks` would have compiled, and compile nothing."""
    with _registered(_EDIT, as_variables), _registered(_COMPILE, lambda _source: b""):
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
    with ThreadPoolExecutor(compiler_count()) as pool:
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


@contextmanager
def cuda_compiler(target: tvm.target.Target) -> Iterator[None]:
    """Have TVM compile CUDA code with nvcc, else NVRTC, and with IEEE arithmetic instead of its ``--use_fast_math``.

    Large kernels are built in parts where nvcc is there (`cuda_build`).

    TVM reads these settings from the environment; the caller's own choice of compiler is kept. For a target without
    CUDA nothing changes.

    Raises
    ------
    BuildError
        TVM can use a GPU here, but there is no CUDA compiler.
    """
    if target.kind.name != "cuda":
        yield
        return
    mode = os.environ.get("TVM_CUDA_COMPILE_MODE") or ("nvcc" if shutil.which("nvcc") else "nvrtc")
    bindings = importlib.util.find_spec("cuda") and importlib.util.find_spec("cuda.bindings")
    # Without TVM's CUDA runtime the code is not compiled here at all.
    if mode == "nvrtc" and not bindings and tvm_ffi.get_global_func("device_api.cuda", allow_missing=True):
        raise BuildError("target cuda", "no CUDA compiler", hint="put nvcc on PATH or pip install 'tvm-sparse[cuda]'")
    options = os.environ.get("TVM_CUDA_NVRTC_EXTRA_OPTS", "")
    settings = {
        "TVM_CUDA_COMPILE_MODE": mode,
        "TVM_CUDA_NVCC_NO_FAST_MATH": "1",
        "TVM_CUDA_NVRTC_EXTRA_OPTS": f"{options} --ftz=false --prec-div=true --prec-sqrt=true".strip(),
    }
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        with hooks(target):
            yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def as_variables(source: str, _target: tvm.target.Target | None = None) -> str:
    """`source` with the arrays of threads that are accessed at constant indices only as that many variables.

    In the form of ``tvm_callback_cuda_postproc``, which TVM applies to the source before anything else.
    """
    arrays = {match["name"] for match in _ARRAY.finditer(source) if int(match["length"]) <= _MAX_LENGTH}
    for name in sorted(arrays):
        declaration = re.compile(rf"alignas\(\d+\) (\w+) {name}\[(\d+)\];")
        declared, count = declaration.subn(_variables, source)
        changed, accesses = re.subn(rf"\b{name}\[(\d+)\]", rf"{name}_at_\1", declared)
        # Another index, or the array itself, is used somewhere.
        if accesses + count == len(re.findall(rf"\b{name}\b", source)):
            source = changed
    return source


def _variables(declaration: re.Match[str]) -> str:
    kind, length = declaration[1], int(declaration[2])
    name = declaration[0].split()[2].partition("[")[0]
    return f"{kind} {', '.join(f'{name}_at_{index}' for index in range(length))};"
