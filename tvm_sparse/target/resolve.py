"""Text or JSON to a TVM target, and back."""

from __future__ import annotations

import platform
import re
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from tvm_sparse.errors import UsageError, last_line, typed
from tvm_sparse.target.cpu import available_cores, host_cpu
from tvm_sparse.target.gpu import capability_of, card
from tvm_sparse.target.gpu_driver import gpu_arch, gpu_model
from tvm_sparse.untrusted.json_text import loads

if TYPE_CHECKING:
    from tvm.target import Target

# The card this project tunes for first; used where CUDA code is built on a machine without a GPU.
DEFAULT_CUDA_ARCH = "sm_90"
# More than any machine has.
MOST_CORES = 4096
# What people call a kind of target.
_CPU = {"cpu": "llvm"}
_NUMBERED_GPU = re.compile(r"cuda:(?P<index>\d{1,4})")
# Architectures that LLVM lists by another name.
_ALIASES = re.compile(r"i[3-6]86|amd64|arm64|(arm|thumb)(eb)?v\d[a-z0-9.]*|ppc(64)?(le)?")


def resolve_target(text: str | dict[str, Any] | Target | None = None, threads: int | None = None) -> Target:
    """The TVM target for ``"cpu"``, ``"cuda"``, a JSON object (text or dict) or None, which means ``"cpu"``.

    TVM's name of the first, ``"llvm"``, is as good, and ``"cuda:1"`` is a target like ``"cuda"``: which GPU runs the
    code says `device_index`. A TVM target is returned as it is, but for `threads` of a CPU, where they are given.

    Missing parts are filled in from this machine: processor, number of cores, GPU. A target that names a GPU's
    architecture is complete: it means that architecture's first card, or the one that its attribute ``model`` names.
    UsageError where the text is none of these or names a target kind that tvm-sparse has no schedules for, or where
    `threads` cannot be had.
    """
    from tvm.target import Target

    if isinstance(text, Target):
        if threads is not None:
            return resolve_target(target_json(text), threads)
        return _checked(lambda: text, f"target {text.kind.name}")
    where = f"target {text if text is not None else 'llvm'}"
    config = _config_of(text, where)
    if threads is not None:
        config = {**config, "num-cores": _threads(threads, config.get("kind"))}
    kind = config.get("kind")
    if kind == "llvm":
        defaults: dict[str, Any] = _host_config()
    elif kind == "cuda":
        defaults = {
            **({} if "arch" in config else _gpu_config()),
            "max_threads_per_block": 1024,
            "max_shared_memory_per_block": 49152,
            "host": _host_config(),
        }
    else:
        raise UsageError(where, "unknown target kind", kind, "llvm, cuda, or a JSON object with one of these as kind")
    return _checked(lambda: Target({**defaults, **config}), where)


def device_index(target: Any) -> int:
    """The number of the GPU that a target names as ``"cuda:1"`` does; 0 of any other."""
    numbered = _NUMBERED_GPU.fullmatch(target) if isinstance(target, str) else None
    return int(numbered["index"]) if numbered else 0


def _threads(threads: int, kind: Any) -> int:
    if kind != "llvm":
        raise UsageError("threads", "they are of a CPU's kernels", f"target {kind}", hint="leave threads out")
    if type(threads) is not int or not 1 <= threads <= MOST_CORES:
        raise UsageError("threads", "is no number of threads", threads, f"1 to {MOST_CORES}")
    return threads


def _checked(make: Callable[[], Target], title: str) -> Target:
    """What `make` makes; UsageError where TVM or LLVM does not accept it, or there is no such machine."""
    from tvm.target.codegen import llvm_get_vector_width

    try:
        target = make()
        for each in (each for each in (target, target.host) if each is not None and each.kind.name == "llvm"):
            cores, triple = int(each.attrs.get("num-cores", 1)), str(each.attrs.get("mtriple", ""))
            if not 1 <= cores <= MOST_CORES:
                raise UsageError(title, "num-cores is no number of cores", cores, f"1 to {MOST_CORES}")
            # LLVM finds no target then, and TVM goes on without one.
            if triple and not is_architecture(triple.partition("-")[0]):
                raise UsageError(title, "LLVM knows no such architecture", triple, "such as x86_64-linux-gnu")
            # Its other options are read where they are first used.
            llvm_get_vector_width(each)
        arch = str(target.attrs.get("arch", ""))
        if target.kind.name == "cuda" and not capability_of(arch):
            raise UsageError(title, "NVIDIA has no such architecture", arch, "such as sm_90")
    except (ValueError, TypeError, RuntimeError, OverflowError, RecursionError) as error:
        hint = f"see {typed('doctor')} for one"
        raise UsageError(title, f"TVM does not accept it: {last_line(error)}", hint=hint) from None
    return target


def is_architecture(name: str) -> bool:
    """Whether LLVM knows an architecture; where it is asked about another one's processors, it crashes."""
    from tvm.target.codegen import llvm_get_targets

    return bool(_ALIASES.fullmatch(name)) or name in map(str, llvm_get_targets())


def _config_of(text: str | dict[str, Any] | None, where: str) -> dict[str, Any]:
    if isinstance(text, dict):
        return text
    if text is None or not text.lstrip().startswith("{"):
        kind = "cuda" if _NUMBERED_GPU.fullmatch(text or "") else text or "llvm"
        return {"kind": _CPU.get(kind, kind)}
    try:
        return dict(loads(text))
    except ValueError as error:
        raise UsageError(where, f"not valid JSON: {error}", hint='write it like \'{"kind":"llvm"}\'') from None


def target_json(target: Target) -> dict[str, Any]:
    """The target as JSON values, from which ``tvm.target.Target`` makes it again."""
    return {key: value for key, value in plain(target.export()).items() if key not in ("tag", "keys")}


def thread_count(target: Target) -> int:
    """CPU threads that kernels for `target` run with."""
    return int(target.attrs.get("num-cores", 1)) if target.kind.name == "llvm" else 1


def architecture_of(target: Target) -> str:
    """What Linux calls the architecture that code for `target`, or its host code, is for."""
    triple = "" if target.kind.name == "cuda" else str(target.attrs.get("mtriple", ""))
    return triple.split("-", maxsplit=1)[0] or platform.machine()


@lru_cache(maxsize=1)
def _host_config() -> dict[str, Any]:
    return {"kind": "llvm", "mcpu": host_cpu(), "num-cores": available_cores()}


def _gpu_config() -> dict[str, Any]:
    """Architecture and, where it is not that architecture's first card, model of this machine's GPU."""
    arch, model = gpu_arch(), gpu_model()
    if arch is None:
        return {"arch": DEFAULT_CUDA_ARCH}
    capability = capability_of(arch)
    return {"arch": arch} if card(capability, model) == card(capability) else {"arch": arch, "model": model}


def plain(value: Any) -> Any:
    """`value` with maps as dicts, arrays as lists and integer or float constants as numbers.

    TypeError where something else is in it.
    """
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if hasattr(value, "items"):
        return {str(key): plain(item) for key, item in value.items()}
    if hasattr(value, "__iter__"):
        return [plain(item) for item in value]
    if hasattr(value, "value"):
        return plain(value.value)
    raise TypeError(f"{type(value).__name__} is not a JSON value")
