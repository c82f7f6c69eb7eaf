"""CUDA source to machine code: TVM's compiler with our settings, large kernels as several sources side by side.

TVM is told by environment variables and by global functions that it calls with the CUDA source of a module
(`compile_hooks`). Both belong to the process, so builds in several threads share them: the first sets them, the last
restores them.
"""

import importlib
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import tvm_ffi
from tvm.support import nvcc
from tvm.target import Target

from tvm_sparse.codegen.cuda.compile_hooks import Shared, hooks, instead
from tvm_sparse.codegen.cuda.cubin import function_bytes
from tvm_sparse.codegen.cuda.separate_compilation import TranslationUnit, size_options, split
from tvm_sparse.errors import BuildError
from tvm_sparse.files.temporary import TemporaryFolder
from tvm_sparse.target.cpu import compiler_count

# Settings of TVM and nvcc that change what a source is compiled to.
_OPTIONS = (
    "NVCC_PREPEND_FLAGS",
    "NVCC_APPEND_FLAGS",
    "TVM_CUDA_NVRTC_EXTRA_OPTS",
    "TVM_CUDA_PTXAS_REG_LEVEL",
    "TVM_CUDA_PTXAS_EXTRA_OPTS",
    "TVM_KERNEL_DEBUG",
)
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
    without CUDA they do not change. BuildError where TVM can use a GPU here, but there is no CUDA compiler.
    """
    with ExitStack() as stack:
        stack.enter_context(target)
        if target.kind.name == "cuda":
            stack.enter_context(_SETTINGS)
            stack.enter_context(_HOOKS)
        yield


def is_compiled_here() -> bool:
    """Whether TVM has CUDA source compiled; without its CUDA runtime, modules hold source for another machine."""
    return tvm_ffi.get_global_func("device_api.cuda", allow_missing=True) is not None


def toolchain() -> dict[str, str]:
    """What decides, beside source and target, what CUDA source becomes here: compiler, its version, its settings."""
    if not is_compiled_here():
        return {"compiler": "none"}
    version = _nvcc_version(shutil.which("nvcc") or "") if _mode() == "nvcc" else _nvrtc_version()
    return {"compiler": _mode(), "version": version, **{k: os.environ[k] for k in _OPTIONS if k in os.environ}}


def _mode() -> str:
    return os.environ.get("TVM_CUDA_COMPILE_MODE") or ("nvcc" if shutil.which("nvcc") else "nvrtc")


@lru_cache(maxsize=1)
def _nvcc_version(path: str) -> str:
    if not path:
        return ""
    done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _nvrtc_version() -> str:
    _, major, minor = importlib.import_module("cuda.bindings.nvrtc").nvrtcVersion()
    return f"{major}.{minor}"


def _settings() -> ExitStack:
    """Sets what TVM reads, until it is closed."""
    mode = _mode()
    bindings = importlib.util.find_spec("cuda") and importlib.util.find_spec("cuda.bindings")
    if mode == "nvrtc" and not bindings and is_compiled_here():
        raise BuildError("target cuda", "no CUDA compiler", hint="put nvcc on PATH or pip install 'tvm-sparse[cuda]'")
    settings = {
        "TVM_CUDA_COMPILE_MODE": mode,
        "TVM_CUDA_NVCC_NO_FAST_MATH": "1",
        "TVM_CUDA_NVRTC_EXTRA_OPTS": f"{os.environ.get('TVM_CUDA_NVRTC_EXTRA_OPTS', '')} {_IEEE}".strip(),
    }
    with ExitStack() as stack:
        # Last what was set before, first the removal of what was not.
        stack.callback(os.environ.update, {name: os.environ[name] for name in settings if name in os.environ})
        for name in settings:
            stack.callback(os.environ.pop, name, None)
        os.environ.update(settings)
        return stack.pop_all()


_SETTINGS = Shared(_settings)


def as_scalars(source: str) -> str:
    """`source` with the arrays of threads that are accessed at constant indices only as that many variables.

    nvcc's front end takes time quadratic in the accesses to a local array.
    """
    arrays = {match["name"] for match in _ARRAY.finditer(source) if int(match["length"]) <= _MAX_LENGTH}
    if not arrays:
        return source
    # A large kernel has 160 arrays in 20 MB: each pass over it takes half a second, whether for one name or for all.
    use = re.compile(rf"\b({_any_of(arrays)})\b(?!\[\d+\])")
    # Another index, or the array itself, is used somewhere.
    arrays -= {match[1] for match in use.finditer(source)}
    if not arrays:
        return source
    name = _any_of(arrays)
    declaration = rf"alignas\(\d+\) (?P<kind>\w+) (?P<declared>{name})\[(?P<length>\d+)\];"
    return re.sub(rf"{declaration}|\b(?P<name>{name})\[(?P<index>\d+)\]", _as_scalar, source)


def _any_of(names: set[str]) -> str:
    return "|".join(sorted(names))


def _as_scalar(match: re.Match[str]) -> str:
    """What a declaration of an array, or an access to one, becomes."""
    kind, declared, length, name, index = match.groups()
    if kind is None:
        return f"{name}_at_{index}"
    return f"{kind} {', '.join(f'{declared}_at_{number}' for number in range(int(length)))};"


def compiled(source: str, whole: Callable[[str], Any]) -> Any:
    """The machine code of a module: that of `whole`, or of its translation units where it has some."""
    units = _units(source)
    return _compile_units(units, Target.current()) if units else whole(source)


def _units(source: str) -> list[TranslationUnit]:
    """The translation units that are compiled by themselves; none where the source is compiled as a whole.

    Files that they leave in one folder would overwrite each other.
    """
    can_link = _mode() == "nvcc" and not leaves_files()
    units = split(source) if can_link else []
    return units if len(units) > 1 else []


def leaves_files() -> bool:
    """Whether the compiler is asked to leave what it reads and writes in a folder, under one name."""
    return "TVM_KERNEL_DUMP" in os.environ


# Compiles one part of a source.
Step = Callable[[], bytes]
# What all parts became -> the module.
Last = Callable[[list[bytes]], bytes]


def steps(source: str, target: Target) -> tuple[list[Step], Last]:
    """How to compile a CUDA source in parts, each by one compiler, in any thread and order, within `cuda_compiler`.

    A step raises RuntimeError where the compiler rejects its part (`complaint`).
    """
    units = _units(source)
    if units:
        first, last = _in_order(units)
        return [partial(_compile_unit, unit, target) for unit in first], partial(_finish, last, target=target)
    return [partial(_compile_whole, source, target)], lambda parts: parts[0]


def _compile_whole(source: str, target: Target) -> bytes:
    with target:
        return bytes(tvm_ffi.get_global_func("tvm_callback_cuda_compile")(source))


def complaint(error: BaseException) -> str:
    """What a compiler says, which TVM puts behind the whole source, megabytes of it; "" where it says nothing."""
    return str(error).partition("Compilation error:")[2].strip()[:500]


def _in_order(units: list[TranslationUnit]) -> tuple[list[TranslationUnit], list[TranslationUnit]]:
    """Units that are compiled side by side, and those that need their sizes."""
    return [each for each in units if not each.measures], [each for each in units if each.measures]


def _compile_units(units: list[TranslationUnit], target: Target) -> bytes:
    """The cubin of a module.

    RuntimeError where the compiler or the linker rejects it, in the words of TVM's own compilation.
    """
    first, last = _in_order(units)
    with ThreadPoolExecutor(compiler_count()) as pool:
        jobs = [pool.submit(_compile_unit, unit, target) for unit in first]
        done, _ = wait(jobs, return_when=FIRST_EXCEPTION)
        # After a failure nothing else is begun.
        pool.shutdown(wait=True, cancel_futures=True)
    complaints = [str(job.exception()) for job in done if job.exception() is not None]
    if complaints:
        # A new exception: that of the job would keep its folder of temporary files.
        del jobs, done
        raise RuntimeError(complaints[0])
    return _finish(last, [job.result() for job in jobs], target)


def _finish(last: list[TranslationUnit], objects: list[bytes], target: Target) -> bytes:
    """The cubin of a module from those of its units, but for the `last` ones, which are compiled now."""
    sizes = size_options({name: size for each in objects for name, size in function_bytes(each).items()})
    measuring = [replace(unit, options=(*unit.options, *sizes)) for unit in last]
    return _link([*objects, *(_compile_unit(unit, target) for unit in measuring)], target)


def _compile_unit(unit: TranslationUnit, target: Target) -> bytes:
    with target:
        options = ["-rdc=true", *unit.options]
        return bytes(nvcc.compile_cuda(unit.source, target_format="cubin", options=options, compiler="nvcc"))


def _link(objects: list[bytes], target: Target) -> bytes:
    with TemporaryFolder() as folder:
        paths = [Path(folder, f"unit{index}.cubin") for index in range(len(objects))]
        for path, code in zip(paths, objects, strict=True):
            path.write_bytes(code)
        linked = Path(folder, "module.cubin")
        command = ["nvcc", "-dlink", "-cubin", "-arch", str(target.attrs["arch"]), "-o", str(linked), *map(str, paths)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"Compilation error:\n{done.stdout}{done.stderr}")
        return linked.read_bytes()


_HOOKS = hooks(as_scalars, compiled)


@contextmanager
def source_only() -> Iterator[None]:
    """Have TVM make CUDA source as it would be compiled, and compile nothing; needs no compiler."""
    with _HOOKS, instead(compile_=lambda _source, _whole: b""):
        yield


@contextmanager
def prebuilt(source: str, code: bytes) -> Iterator[None]:
    """Have TVM take `source` and its machine code `code` for whatever CUDA source it makes; needs no compiler."""
    with _HOOKS, instead(lambda _source: source, lambda _source, _whole: code):
        yield
