"""Why code for a target does not run here; device_of."""

import platform
import re

import tvm
from tvm.target import Target
from tvm.target.codegen import llvm_get_cpu_features

from tvm_sparse.errors import UsageError
from tvm_sparse.target.cpu import cpu_flags
from tvm_sparse.target.resolve import architecture_of, resolve_target

_INSTRUCTION_SET = re.compile(
    r"s?sse|avx|amx|fma|bmi|f16c|lzcnt|movbe|popcnt|aes|sha|gfni|vaes|vpclmul|neon|sve|dotprod"
)
# What Linux calls some of them.
_LINUX_NAMES = {"sse3": "pni", "lzcnt": "abm", "bmi": "bmi1", "sha": "shani", "neon": "asimd", "dotprod": "asimddp"}
# Those that no compiler chooses by itself, and that virtual machines often hide.
_NEVER_CHOSEN = re.compile(r"amx|avx10|avx512vp2intersect|sse4a|sha|v?aes|vpclmul")


def device_of(target: Target, index: int = 0) -> tvm.runtime.Device:
    """The device that runs code for `target`, of several GPUs that of this number."""
    return tvm.cuda(index) if target.kind.name == "cuda" else tvm.cpu(0)


def require_first(index: int) -> None:
    """Raise UsageError where a GPU is not this machine's first, on which models are timed."""
    if index:
        hint = f"set CUDA_VISIBLE_DEVICES={index}, which makes it cuda:0"
        raise UsageError("target", "models are timed on the first GPU", f"cuda:{index}", "cuda:0", hint)


def require_alike(index: int) -> None:
    """Raise UsageError where GPU `index` of this machine is not there, or cannot run what its first one runs.

    Without any GPU code is built all the same, and runs nowhere.
    """
    if not index or not tvm.cuda(0).exist:
        return
    first, device = tvm.cuda(0), tvm.cuda(index)
    if not device.exist:
        raise UsageError("target", "there is no such GPU", f"cuda:{index}", hint="nvidia-smi -L lists them")
    if device.compute_version != first.compute_version:
        problem = f"it is another kind of GPU than cuda:0, compute capability {first.compute_version}"
        hint = f"set CUDA_VISIBLE_DEVICES={index}, which makes it cuda:0"
        raise UsageError("target", problem, f"cuda:{index}, {device.compute_version}", hint=hint)


def why_not_here(target: Target) -> str:
    """Why code for `target` does not run on this machine, as a sentence; empty if it does."""
    if target.kind.name == "cuda":
        return _why_not_this_gpu(str(target.attrs["arch"]))
    architecture = architecture_of(target)
    if architecture != platform.machine():
        return f"it was built for {architecture}, and this is {platform.machine()}"
    # Generic levels of processors, taken where AVX-512 is hidden, lack many features that Linux shows.
    unknown, shown = _instruction_sets(target) - _instruction_sets(resolve_target()), cpu_flags()
    missing = sorted(each for each in unknown if _linux_name(each) not in shown)
    return f"it was built for {target.attrs['mcpu']}, and this processor lacks {', '.join(missing)}" if missing else ""


def required_flags(target: Target) -> list[str]:
    """What Linux must show, as `cpu_flags` writes it, of a CPU that runs code for `target`; sorted.

    Without what LLVM says of this machine and Linux does not show: then that is no sign.
    """
    hidden = {each for each in _instruction_sets(resolve_target()) if _linux_name(each) not in cpu_flags()}
    features = _instruction_sets(target) - hidden
    return sorted(_linux_name(each) for each in features if not _NEVER_CHOSEN.match(each))


def _linux_name(feature: str) -> str:
    return _LINUX_NAMES.get(feature, re.sub("[.-]", "", feature))


def _why_not_this_gpu(arch: str) -> str:
    device = tvm.cuda(0)
    if not device.exist:
        return "there is no CUDA device, or this TVM was built without CUDA"
    found = f"sm_{device.compute_version.replace('.', '')}"
    # Code of an architecture runs on that one only: it is loaded as machine code, not as PTX.
    return "" if arch.rstrip("af") == found else f"it was built for {arch}, and this GPU is {found}"


def _instruction_sets(target: Target) -> set[str]:
    """The processor's features that compiled code may use; LLVM lists hints for tuning among them."""
    if "mcpu" not in target.attrs:
        return set()
    return {feature for feature in llvm_get_cpu_features(target) if _INSTRUCTION_SET.match(feature)}
