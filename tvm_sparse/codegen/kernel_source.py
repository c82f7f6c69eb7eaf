"""A kernel apart from its model: its CUDA source, how it is launched, and both put together with its machine code.

Kernels are named after their source. So equal ones of several layers or models are one, and none meets another's name.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx
from tvm.target import Target

from tvm_sparse.codegen import lowering
from tvm_sparse.codegen.cuda.launches import Launches
from tvm_sparse.codegen.cuda.nvcc import is_compiled_here, prebuilt, source_only
from tvm_sparse.scheduling.kernel import Kernel

# Hex digits of a source's hash in its kernels' names.
_NAME_DIGITS = 16


@dataclass(frozen=True)
class KernelSource:
    """CUDA source and the launches of the kernels in it."""

    source: str
    launches: Launches

    @classmethod
    def of(cls, func: tirx.PrimFunc, target: Target) -> KernelSource | None:
        """A scheduled function's; None where its host code does more than launch kernels.

        The source is what `tvm_sparse show` prints of it but for the names of the kernels. BuildError where it cannot
        be folded or lowered.
        """
        host, device = lowering.split(func, target)
        launches = Launches.of(host, device)
        if launches is None:
            return None
        with target, source_only():
            source = str(_build_cuda()(device, target).inspect_source())
        signatures = [(each.types, each.settings) for each in launches.launches]
        digest = hashlib.sha256(f"{signatures}{source}".encode()).hexdigest()[:_NAME_DIGITS]
        names = {each.kernel: f"tvm_sparse_{digest}_{index}" for index, each in enumerate(launches.launches)}
        renamed = re.sub(rf"\b(?:{'|'.join(names)})\b", lambda name: names[name[0]], source)
        return cls(renamed, launches.renamed(names))


@dataclass(frozen=True)
class BuiltKernel(Kernel):
    """A kernel whose device code is a module of its own; `func` only launches what is in it.

    `names` are those of its device functions.
    """

    module: tvm.runtime.Module | None = None
    names: tuple[str, ...] = ()

    @classmethod
    def of(cls, launches: Launches, module: tvm.runtime.Module, constants: tuple[np.ndarray, ...]) -> BuiltKernel:
        """The kernel that launches what is in `module`, a `device_module` of `launches`."""
        # As an ordinary `Kernel` has it, so that Relax leaves it alone.
        func = launches.host_function().with_attr("tirx.is_scheduled", True).with_attr("op_pattern", 8)
        return cls(func, constants, module, launches.names)


def device_module(launches: Launches, code: bytes, target: Target) -> tvm.runtime.Module:
    """TVM's module of kernels from `code`: machine code or, where TVM has no CUDA runtime, their source.

    Such a module of source is what TVM itself makes then.
    """
    source = f"// compiled: {launches.names[0]}" if is_compiled_here() else code.decode()
    with target, prebuilt(source, code):
        return _build_cuda()(launches.device_stubs(target), target)


def _build_cuda() -> Any:
    return tvm_ffi.get_global_func("target.build.cuda")
