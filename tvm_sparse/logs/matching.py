"""Whether a record serves a weight on a machine, and the sentence that says why it does not."""

from __future__ import annotations

import math
import platform
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.logs.record import FINGERPRINT_KEYS, TuningRecord

if TYPE_CHECKING:
    from tvm_sparse.target.cpu_info import CpuInfo


def machine(record: TuningRecord) -> tuple[str, ...]:
    """What must be equal for a record to hold on a machine."""
    return tuple(record.fingerprint[key] for key in FINGERPRINT_KEYS)


def mismatch(record: TuningRecord, fingerprint: dict[str, Any]) -> str:
    """Why a record does not hold on the machine of `fingerprint`; empty if it does."""
    for key, name in zip(FINGERPRINT_KEYS, ("target kind", "architecture", "threads", "TVM"), strict=True):
        if record.fingerprint[key] != fingerprint[key]:
            return f"made for {name} {record.fingerprint[key]}, here it is {fingerprint[key]}"
    return ""


def is_near(theirs: dict[str, Any], fingerprint: dict[str, Any]) -> bool:
    """Whether decisions made on the machine of one fingerprint fit that of another.

    Equal are a CPU's vectors, which decide the layout of its kernels: their length, and how many registers there are
    and for what; of GPUs it is the system's CUDA that counts, as all architectures from sm_80 on have what the kernels
    need. TVM and threads may differ.
    """
    if theirs["kind"] != fingerprint["kind"]:
        return False
    if theirs["kind"] == "cuda":
        return True
    vectors = _vectors(theirs)
    return vectors is not None and vectors == _vectors(fingerprint)


def _vectors(fingerprint: dict[str, Any]) -> CpuInfo | None:
    """The vector unit of a machine; None where LLVM does not know its name."""
    # Fingerprints without a system are of this one.
    architecture = fingerprint.get("system", "").rpartition("-")[2] or platform.machine()
    return _vectors_of(fingerprint["arch"], architecture)


@cache
def _vectors_of(mcpu: str, architecture: str) -> CpuInfo | None:
    # Logs are read where TVM is not loaded.
    from tvm_sparse.target.cpu_info import CpuInfo

    return CpuInfo.of_processor(mcpu, architecture)


# The same convolutions are in log after log, and in each as often as they were tried.
@lru_cache(maxsize=4096)
def sum_of(spec: ConvSpec) -> ConvSpec:
    """The convolution without what follows its sum."""
    return replace(spec, bias=False, residual=False, relu=False, relu_max=math.inf)


def misfit(record: TuningRecord, pattern: SparsityPattern) -> str:
    """Why a record of this machine cannot serve a weight of this pattern; empty if it can."""
    if record.is_dense or record.pattern.structure == pattern.structure:
        return ""
    return f"made for structure {record.pattern.structure}, this weight is {pattern.structure}"


def no_trial(record: TuningRecord, pattern: SparsityPattern) -> str:
    """Why a record of this machine that is no trial of a weight of this pattern is none."""
    if record.is_dense or record.pattern.value_digest == pattern.value_digest:
        return "timed with warm code only, so it is timed again"
    return "made for other weights"


def counted(spec: ConvSpec, reasons: Iterable[str]) -> list[str]:
    """One sentence for each reason, with how many records it concerns; empty reasons do not count."""
    counts = Counter(reasons)
    del counts[""]
    return [
        f"{count} record{'s' if count > 1 else ''} of {spec.key} ignored: {reason}"
        for reason, count in sorted(counts.items())
    ]


def distance(one: SparsityPattern, other: SparsityPattern) -> float:
    """|log| of the ratio of the densities; 0 only if they are equal."""
    if not one.nnz or not other.nnz:
        return 0 if one.nnz == other.nnz else math.inf
    return abs(math.log(one.density / other.density))
