"""The machine: targets, and the fingerprint under which measurements are comparable."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvm_sparse.errors import UsageError
from tvm_sparse.plain import plain

if TYPE_CHECKING:
    from tvm.target import Target

# The card this project tunes for first; used where CUDA code is built on a machine without a GPU.
DEFAULT_CUDA_ARCH = "sm_90"
# Environment variable: compilers that the build of one kernel runs side by side; all cores where it is not set.
COMPILERS = "TVM_SPARSE_COMPILERS"
# Levels of x86-64 that LLVM knows, the best first; the last needs nothing.
GENERIC_CPUS = ("x86-64-v4", "x86-64-v3", "x86-64-v2", "x86-64")


def resolve_target(text: str | dict[str, Any] | Target | None = None) -> Target:
    """The TVM target for ``"llvm"``, ``"cuda"``, a JSON object (text or dict) or None, which means ``"llvm"``.

    A TVM target is returned as it is.

    Missing parts are filled in from this machine: processor, number of cores, GPU architecture and its limits.

    Raises
    ------
    UsageError
        The text is none of these, or names a target kind that tvm-sparse has no schedules for.
    """
    from tvm.target import Target

    if isinstance(text, Target):
        return text
    where = f"target {text if text is not None else 'llvm'}"
    if isinstance(text, dict):
        config = dict(text)
    elif text is None or not text.lstrip().startswith("{"):
        config = {"kind": text or "llvm"}
    else:
        try:
            config = json.loads(text)
        except ValueError as error:
            raise UsageError(where, f"not valid JSON: {error}", hint='write it like \'{"kind":"llvm"}\'') from None
    kind = config.get("kind")
    if kind == "llvm":
        defaults: dict[str, Any] = _host_config()
    elif kind == "cuda":
        defaults = {
            "arch": _gpu_arch() or DEFAULT_CUDA_ARCH,
            "max_threads_per_block": 1024,
            "max_shared_memory_per_block": 49152,
            "host": _host_config(),
        }
    else:
        raise UsageError(where, "unknown target kind", kind, "llvm, cuda, or a JSON object with one of these as kind")
    try:
        return Target({**defaults, **config})
    except (ValueError, TypeError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[-1]
        raise UsageError(where, f"TVM does not accept it: {reason}", hint="see tvm-sparse doctor for one") from None


def target_json(target: Target) -> dict[str, Any]:
    """The target as JSON values, from which ``tvm.target.Target`` makes it again."""
    return {key: value for key, value in plain(target.export()).items() if key not in ("tag", "keys")}


def threads(target: Target) -> int:
    """CPU threads that kernels for `target` run with."""
    return int(target.attrs.get("num-cores", 1)) if target.kind.name == "llvm" else 1


def fingerprint(target: Target) -> dict[str, str]:
    """What a measurement on `target` depends on: kind, architecture, threads, device name, TVM version, system."""
    kind = target.kind.name
    return {
        "kind": kind,
        "arch": str(target.attrs["arch"] if kind == "cuda" else target.attrs.get("mcpu", "generic")),
        "threads": str(threads(target)),
        "device": (gpu_property("name") or "unknown") if kind == "cuda" else _cpu_name(),
        "tvm": metadata.version("apache-tvm"),
        "system": f"{platform.system()}-{platform.machine()}",
    }


def available_cores() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def compilers() -> int:
    """Compilers that the build of one kernel runs side by side; UsageError where the environment says no number."""
    setting = os.environ.get(COMPILERS, "")
    if not setting:
        return available_cores()
    if not setting.isdecimal() or int(setting) < 1:
        raise UsageError(f"environment variable {COMPILERS}", "not a number of compilers", setting, "1 or more")
    return int(setting)


@lru_cache(maxsize=1)
def _host_config() -> dict[str, Any]:
    return {"kind": "llvm", "mcpu": _host_cpu(), "num-cores": available_cores()}


def _host_cpu() -> str:
    """LLVM's name of this CPU, or a generic one where a virtual machine hides vector instructions from its guests.

    LLVM goes by family and model; code for a Zen 4 whose host hides AVX-512 ends with an illegal instruction.
    """
    from tvm.target import Target
    from tvm.target.codegen import llvm_get_cpu_features, llvm_get_system_cpu

    name, flags = str(llvm_get_system_cpu()), set(re.sub("[._]", "", _cpu_info("flags")).split())

    def runs(cpu: str) -> bool:
        features = map(str, llvm_get_cpu_features(Target({"kind": "llvm", "mcpu": cpu})))
        # No compiler chooses vp2intersect by itself, and not every host shows it.
        needed = (each for each in features if each.startswith("avx512") or each in ("avx", "avx2", "fma"))
        return flags.issuperset({*needed} - {"avx512vp2intersect"})

    return name if not flags or runs(name) else next(filter(runs, GENERIC_CPUS))


@lru_cache(maxsize=1)
def _cpu_name() -> str:
    return _cpu_info("model name") or platform.processor() or platform.machine()


def _cpu_info(key: str) -> str:
    """What Linux says of the first core; empty elsewhere."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == key), "")


def _gpu_arch() -> str | None:
    capability = gpu_property("compute_cap")
    return f"sm_{capability.replace('.', '')}" if capability else None


def compute_capability(target: Target) -> int:
    """Of a CUDA target, 90 for ``sm_90a``; 0 where its architecture is not known."""
    arch = str(target.attrs["arch"]) if "arch" in target.attrs else ""
    number = arch.removeprefix("sm_").rstrip("af")
    return int(number) if number.isdigit() else 0


def gpu_id() -> str:
    """The UUID of the GPU that this process uses; what CUDA_VISIBLE_DEVICES says where the driver does not tell."""
    return gpu_property("uuid") or f"gpu-{_visible_gpu() or 0}"


def _visible_gpu() -> str:
    """The first of CUDA_VISIBLE_DEVICES, which CUDA calls device 0; empty where it is not set."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()


@lru_cache(maxsize=4)
def gpu_property(field: str) -> str | None:
    """One property of the first GPU; None where there is none. Asks the driver's tool, so no CUDA context is made."""
    try:
        command = ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader"]
        if _visible_gpu():
            command.append(f"--id={_visible_gpu()}")
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = answer.stdout.strip().splitlines()
    return lines[0].strip() if answer.returncode == 0 and lines else None
