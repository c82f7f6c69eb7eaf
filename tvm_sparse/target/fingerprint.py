"""What a measurement depends on."""

from __future__ import annotations

import platform
from importlib import metadata
from typing import TYPE_CHECKING

from tvm_sparse.target.cpu import cpu_name
from tvm_sparse.target.gpu_driver import gpu_property
from tvm_sparse.target.resolve import architecture_of, thread_count

if TYPE_CHECKING:
    from tvm.target import Target


def fingerprint_of(target: Target) -> dict[str, str]:
    """What a measurement on `target` depends on: kind, architecture, threads, device name, TVM version, system."""
    kind = target.kind.name
    return {
        "kind": kind,
        "arch": str(target.attrs["arch"] if kind == "cuda" else target.attrs.get("mcpu", "generic")),
        "threads": str(thread_count(target)),
        "device": (gpu_property("name") or "unknown") if kind == "cuda" else cpu_name(),
        "tvm": metadata.version("apache-tvm"),
        "system": f"{platform.system()}-{architecture_of(target)}",
    }
