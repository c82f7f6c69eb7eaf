"""Cores, CPU name, LLVM mcpu, number of compilers."""

import os
import platform
import re
from functools import lru_cache
from pathlib import Path

from tvm_sparse.errors import UsageError
from tvm_sparse.untrusted.whole_number import whole_number

# Environment variable: compilers that the build of one kernel runs side by side; all cores where it is not set.
COMPILERS = "TVM_SPARSE_COMPILERS"
# Levels of x86-64 that LLVM knows, the best first; the last needs nothing.
GENERIC_CPUS = ("x86-64-v4", "x86-64-v3", "x86-64-v2", "x86-64")


def available_cores() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def compiler_count() -> int:
    """Compilers that the build of one kernel runs side by side; UsageError where the environment says no number."""
    setting = os.environ.get(COMPILERS, "")
    if not setting:
        return available_cores()
    count = whole_number(setting)
    if not count:
        raise UsageError(f"environment variable {COMPILERS}", "not a number of compilers", setting[:40], "1 or more")
    return count


def host_cpu() -> str:
    """LLVM's name of this CPU, or a generic one where a virtual machine hides vector instructions from its guests.

    LLVM goes by family and model; code for a Zen 4 whose host hides AVX-512 ends with an illegal instruction.
    """
    from tvm.target import Target
    from tvm.target.codegen import llvm_get_cpu_features, llvm_get_system_cpu

    name, flags = str(llvm_get_system_cpu()), cpu_flags()

    def runs(cpu: str) -> bool:
        features = map(str, llvm_get_cpu_features(Target({"kind": "llvm", "mcpu": cpu})))
        # No compiler chooses vp2intersect by itself, and not every host shows it.
        needed = (each for each in features if each.startswith("avx512") or each in ("avx", "avx2", "fma"))
        return flags.issuperset({*needed} - {"avx512vp2intersect"})

    return name if not flags or runs(name) else next(filter(runs, GENERIC_CPUS))


@lru_cache(maxsize=1)
def cpu_name() -> str:
    return cpu_info("model name") or platform.processor() or platform.machine()


def cpu_flags() -> set[str]:
    """The features that Linux shows, of AArch64 by another word, without dots and underscores; none elsewhere."""
    return set(re.sub("[._]", "", cpu_info("flags") or cpu_info("Features")).split())


def cpu_info(key: str) -> str:
    """What Linux says of the first core; empty elsewhere."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == key), "")
