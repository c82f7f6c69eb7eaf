"""Machines that multiply bytes, each as far as this one can run its kernels, and how far these are from right."""

import dataclasses
import tempfile
from pathlib import Path
from typing import NamedTuple

import emulated
import numpy as np
import tvm
from tvm.target.codegen import llvm_get_cpu_features

from tvm_sparse.codegen.lowering import build
from tvm_sparse.conv import reference
from tvm_sparse.conv.byte_form import as_fours, fours_shape, of_bytes
from tvm_sparse.scheduling.cpu.byte_unit import ByteUnit
from tvm_sparse.scheduling.kernel import apply_decisions
from tvm_sparse.target.cpu_info import CpuInfo
from tvm_sparse.target.resolve import resolve_target

ARM = {"mtriple": "aarch64-linux-gnu"}


def target_of(mcpu, **rest):
    """A target whose code is made fast."""
    return resolve_target({"kind": "llvm", "mcpu": mcpu, "num-cores": 1, "opt-level": 0, **rest})


class Machine(NamedTuple):
    """A processor `mcpu` that multiplies by instructions of such `features`.

    Where this machine has none of these, kernels are built for a `stand_in`, if there is one.
    """

    mcpu: str
    features: frozenset[str] = frozenset()
    stand_in: "Machine | None" = None
    is_emulated: bool = False

    @property
    def _options(self):
        return ARM if self.is_emulated else {}

    @property
    def target(self):
        """That of what is run."""
        own = self.stand_in.mcpu if self.stand_in is not None and self.features - HERE else self.mcpu
        return target_of(own, **self._options)

    @property
    def unit(self):
        """What multiplies."""
        return ByteUnit.of(target_of(self.mcpu, **self._options))

    @property
    def cpu(self):
        """The vector unit."""
        return CpuInfo(self.unit.lanes)

    def why_not(self):
        """Why its kernels do not run here; empty where they do."""
        if self.is_emulated:
            return emulated.why_not_emulated()
        lacking = self.features - HERE
        if not lacking or (self.stand_in is not None and not self.stand_in.why_not()):
            return ""
        return f"this machine has no {' and '.join(sorted(lacking))}"

    def call(self, func, arrays):
        """What a kernel leaves in the last of `arrays`."""
        built = build(func.with_attr("global_symbol", "main"), self.target)
        if self.is_emulated:
            with tempfile.TemporaryDirectory() as folder:
                return emulated.call(built, arrays, Path(folder))
        tensors = [tvm.runtime.tensor(each) for each in arrays]
        built["main"](*tensors)
        return tensors[-1].numpy()


HERE = frozenset(llvm_get_cpu_features(resolve_target("llvm")))
_VNNI = Machine("cascadelake", frozenset({"avx512vnni", "avx512vl"}))
MACHINES = {
    "AVX-512 VNNI": _VNNI,
    # Elsewhere of the same function: LLVM makes the same instructions, encoded as AVX-512 does.
    "AVX-VNNI": Machine("alderlake", frozenset({"avxvnni"}), _VNNI),
    "AVX2": Machine("x86-64-v3", frozenset({"avx2"})),
    "AVX-512": Machine("skylake-avx512", frozenset({"avx512bw"})),
    "dotprod": Machine("cortex-a76", is_emulated=True),
    "i8mm": Machine("neoverse-v1", is_emulated=True),
}


def steps_off(machine, space, form, weight, decisions, seed):
    """How far a kernel is from the reference at most: one in a network, or of float32 tensors if `form` is None."""
    spec, rng = space.spec, np.random.default_rng(seed)
    given = reference.random_arguments(spec, seed, integers=True)
    y = np.full(spec.output_shape, np.nan, np.float32)
    if form is None:
        kernel, expected = apply_decisions(space, weight, decisions), reference.reference(spec, weight=weight, **given)
        x, *rest = given.values()
        return _difference(machine.call(kernel.func, [x, *kernel.constants, *rest, y]), expected.value)
    bias = given.get("bias")
    if form.stages and bias is not None:
        spec, form = dataclasses.replace(spec, bias=False), dataclasses.replace(form, bias=given.pop("bias"))
    sums = reference.reference(spec, weight=weight, **given).value
    residual = rng.integers(0, 256, spec.output_shape) + (form.residual_least or 0)
    kernel = space.kernel_in(form, weight, decisions)
    rest = [] if form.stages or bias is None else [bias]
    rest += [] if form.residual_least is None else [as_fours(residual, form.residual_least)]
    y = np.zeros(fours_shape(spec.output_shape), np.int32) if form.stages else y
    y = machine.call(kernel.func, [as_fours(given["x"], spec.least), *kernel.constants, *rest, y])
    return _difference(of_bytes(y, form.least) if form.stages else y, form.of(sums, residual))


def _difference(found, expected):
    return np.nan_to_num(np.abs(found - expected), nan=np.inf).max()
