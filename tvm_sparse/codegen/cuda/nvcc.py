"""CUDA source to machine code: TVM's compiler with our settings, large kernels as several sources side by side.

TVM is told by environment variables and by global functions that it calls with the CUDA source of a module. Both belong
to the process, so builds in several threads share them: the first sets them, the last restores them.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import tvm_ffi
from tvm.support import nvcc
from tvm.target import Target

from tvm_sparse.codegen.cuda.separate_compilation import TranslationUnit, split
from tvm_sparse.errors import BuildError
from tvm_sparse.target.cpu import compiler_count

# TVM's global functions for the CUDA source of a module: first the one edits it, then the other compiles it.
_EDIT, _COMPILE = "tvm_callback_cuda_postproc", "tvm_callback_cuda_compile"
# NVRTC's options for IEEE arithmetic, which undo those of ``--use_fast_math``.
_IEEE = "--ftz=false --prec-div=true --prec-sqrt=true"
_ARRAY = re.compile(r"\balignas\(\d+\) (?:float|int) (?P<name>\w+)\[(?P<length>\d+)\];")
# More elements are no registers anyway.
_MAX_LENGTH = 255


@contextmanager
def cuda_compiler(target: Target) -> Iterator[None]:
    """`target` as TVM's current one, and CUDA code compiled by nvcc, else NVRTC, with IEEE arithmetic.

    TVM's own default is ``--use_fast_math``. The caller's own choice of compiler is kept. Several threads may be in
    this context at a time; whoever else compiles CUDA code with TVM meanwhile has these settings too. For a target
    without CUDA they do not change.

    Raises
    ------
    BuildError
        TVM can use a GPU here, but there is no CUDA compiler.
    """
    with ExitStack() as stack:
        stack.enter_context(target)
        if target.kind.name == "cuda":
            stack.enter_context(_SETTINGS)
        yield


class _Shared(AbstractContextManager[None]):
    """A context that several threads may be in at a time: the first to come enters it, the last to go leaves it."""

    def __init__(self, make: Callable[[], ExitStack]):
        self._make, self._lock, self._users = make, threading.Lock(), 0

    def __enter__(self) -> None:
        with self._lock:
            if self._users == 0:
                self._context = self._make()
            self._users += 1

    def __exit__(self, *_error: object) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self._context.close()


def _settings() -> ExitStack:
    """Sets what TVM reads, until it is closed."""
    mode = os.environ.get("TVM_CUDA_COMPILE_MODE") or ("nvcc" if shutil.which("nvcc") else "nvrtc")
    bindings = importlib.util.find_spec("cuda") and importlib.util.find_spec("cuda.bindings")
    # Without TVM's CUDA runtime the code is not compiled here at all.
    if mode == "nvrtc" and not bindings and tvm_ffi.get_global_func("device_api.cuda", allow_missing=True):
        raise BuildError("target cuda", "no CUDA compiler", hint="put nvcc on PATH or pip install 'tvm-sparse[cuda]'")
    settings = {
        "TVM_CUDA_COMPILE_MODE": mode,
        "TVM_CUDA_NVCC_NO_FAST_MATH": "1",
        "TVM_CUDA_NVRTC_EXTRA_OPTS": f"{os.environ.get('TVM_CUDA_NVRTC_EXTRA_OPTS', '')} {_IEEE}".strip(),
    }
    whole = tvm_ffi.get_global_func(_COMPILE, allow_missing=True)
    with ExitStack() as stack:
        # Last what was set before, first the removal of what was not.
        stack.callback(os.environ.update, {name: os.environ[name] for name in settings if name in os.environ})
        for name in settings:
            stack.callback(os.environ.pop, name, None)
        os.environ.update(settings)
        _register(stack, _EDIT, as_scalars)
        if whole is not None:
            _register(stack, _COMPILE, lambda source: _compile(source, whole))
        return stack.pop_all()


_SETTINGS = _Shared(_settings)


def _register(stack: ExitStack, name: str, function: Callable[..., Any]) -> None:
    """`function` as TVM's global function `name` until `stack` is closed."""
    before = tvm_ffi.get_global_func(name, allow_missing=True)
    tvm_ffi.register_global_func(name, function, override=True)
    if before is None:
        stack.callback(tvm_ffi.registry.remove_global_func, name)
    else:
        stack.callback(tvm_ffi.register_global_func, name, before, override=True)


@contextmanager
def source_only() -> Iterator[None]:
    """Have TVM make CUDA source as it would be compiled, and compile nothing."""
    with ExitStack() as stack:
        _register(stack, _EDIT, as_scalars)
        _register(stack, _COMPILE, lambda _source: b"")
        yield


def as_scalars(source: str, _target: Target | None = None) -> str:
    """`source` with the arrays of threads that are accessed at constant indices only as that many variables.

    nvcc's front end takes time quadratic in the accesses to a local array. In the form of `_EDIT`.
    """
    arrays = {match["name"] for match in _ARRAY.finditer(source) if int(match["length"]) <= _MAX_LENGTH}
    for name in sorted(arrays):
        declared, count = re.subn(rf"alignas\(\d+\) (\w+) ({name})\[(\d+)\];", _scalars, source)
        changed, accesses = re.subn(rf"\b{name}\[(\d+)\]", rf"{name}_at_\1", declared)
        # Another index, or the array itself, is used somewhere.
        if accesses + count == len(re.findall(rf"\b{name}\b", source)):
            source = changed
    return source


def _scalars(declaration: re.Match[str]) -> str:
    kind, name, length = declaration.groups()
    return f"{kind} {', '.join(f'{name}_at_{index}' for index in range(int(length)))};"


def _compile(source: str, whole: Callable[[str], Any]) -> Any:
    """The machine code of a module: that of `whole`, or of its translation units where it is large and nvcc compiles.

    With TVM_KERNEL_DUMP the compiler leaves files in one folder, where translation units would overwrite each other's.
    """
    can_link = os.environ.get("TVM_CUDA_COMPILE_MODE") == "nvcc" and "TVM_KERNEL_DUMP" not in os.environ
    units = split(source) if can_link else []
    return _compile_units(units, Target.current()) if len(units) > 1 else whole(source)


def _compile_units(units: list[TranslationUnit], target: Target) -> bytes:
    """The cubin of a module.

    Raises
    ------
    RuntimeError
        The compiler or the linker rejects it, in the words of TVM's own compilation.
    """
    with ThreadPoolExecutor(compiler_count()) as pool:
        jobs = [pool.submit(_compile_unit, unit, target) for unit in units]
        done, _ = wait(jobs, return_when=FIRST_EXCEPTION)
        # After a failure nothing else is begun.
        pool.shutdown(wait=True, cancel_futures=True)
    complaints = [str(job.exception()) for job in done if job.exception() is not None]
    if complaints:
        # A new exception: that of the job would keep its folder of temporary files.
        del jobs, done
        raise RuntimeError(complaints[0])
    return _link([job.result() for job in jobs], target)


def _compile_unit(unit: TranslationUnit, target: Target) -> bytes:
    with target:
        options = ["-rdc=true", *unit.options]
        return bytes(nvcc.compile_cuda(unit.source, target_format="cubin", options=options, compiler="nvcc"))


def _link(objects: list[bytes], target: Target) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, f"unit{index}.cubin") for index in range(len(objects))]
        for path, code in zip(paths, objects, strict=True):
            path.write_bytes(code)
        linked = Path(folder, "module.cubin")
        command = ["nvcc", "-dlink", "-cubin", "-arch", str(target.attrs["arch"]), "-o", str(linked), *map(str, paths)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"Compilation error:\n{done.stdout}{done.stderr}")
        return linked.read_bytes()
