"""A kernel taken apart and put together is the one that TVM builds in one piece."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm.script.ir_builder import IRBuilder
from tvm.target import Target
from tvm.tirx.script import builder as T

from tvm_sparse.codegen import lowering
from tvm_sparse.codegen.cuda.launches import Launches
from tvm_sparse.codegen.kernel_source import BuiltKernel, KernelSource, device_module
from tvm_sparse.codegen.kernel_stages import stages
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.schedules.lookup import find_space
from tvm_sparse.scheduling.kernel import Kernel, apply_decisions

HOPPER, AMPERE = (Target({"kind": "cuda", "arch": arch}, host={"kind": "llvm"}) for arch in ("sm_90", "sm_80"))
SPEC = ConvSpec(2, 64, 7, 7, 8, 3, 3, padding=(1, 1, 1, 1), bias=True, residual=True)
# With two kernels and a workspace, asynchronous copies, clusters, dependent launch, and none of these.
CASES = [
    ("csr_cuda", HOPPER),
    ("folded_cuda", HOPPER),
    ("folded_cuda:split4-npq49", HOPPER),
    ("dense_cuda", HOPPER),
    ("dense_cuda", AMPERE),
]


def made(name: str, target: Target, seed: int = 0) -> tuple[Kernel, str]:
    """A kernel, and its source as ``show`` prints it."""
    rng = np.random.default_rng(seed)
    weight = rng.standard_normal(SPEC.weight_shape) * (rng.random(SPEC.weight_shape) < 0.1)
    weight = weight.astype(np.float32)
    space = find_space(name, SPEC, SparsityPattern.of(weight), target)
    kernel = apply_decisions(space, weight)
    return kernel, stages(space, kernel, target)["cuda"]()


def with_names_of_tvm(found: KernelSource) -> KernelSource:
    """The kernels called as they are where a function called ``main`` is built."""
    names = [f"main_kernel_{index}" if index else "main_kernel" for index in range(len(found.launches.names))]
    renamed = dict(zip(found.launches.names, names, strict=True))
    source = re.sub("|".join(renamed), lambda name: renamed[name[0]], found.source)
    return KernelSource(source, found.launches.renamed(renamed))


@pytest.mark.parametrize(("name", "target"), CASES)
def test_apart_and_together_it_is_the_same(name: str, target: Target) -> None:
    """Source, host code down to the instruction, and the module of device code down to the byte."""
    kernel, shown = made(name, target)
    found = KernelSource.of(kernel.func, target)
    assert len(set(found.launches.names)) == len(found.launches.names) == shown.count("\nextern") // 2
    assert all(re.fullmatch(r"tvm_sparse_[0-9a-f]{16}_\d", each) for each in found.launches.names)
    renamed = with_names_of_tvm(found)
    assert renamed.source == shown
    # As it comes back from a file.
    launches = Launches.from_json(json.loads(json.dumps(renamed.launches.to_json())))
    assert launches == renamed.launches
    whole = lowering.build(kernel.func, target)
    built = BuiltKernel.of(launches, device_module(launches, shown.encode(), target), kernel.constants)
    host = lowering.build(built.func, target)
    assert host.inspect_source("ll") == whole.inspect_source("ll")
    host.import_module(built.module)
    assert packed(host) == packed(whole)
    assert host.imports[0].inspect_source() == shown


def packed(module: tvm.runtime.Module) -> str:
    """What a library of `module` holds of the modules that it imports."""
    return str(tvm_ffi.get_global_func("runtime.ModulePackImportsToC")(module, False, ""))


def test_names_follow_the_source() -> None:
    """Equal kernels are one; others, also for another target, never meet each other's names."""
    sources = [KernelSource.of(made(name, target, seed)[0].func, target) for name, target, seed in (
        ("folded_cuda", HOPPER, 0),
        ("folded_cuda", HOPPER, 1),
        ("folded_cuda", AMPERE, 0),
        ("dense_cuda", HOPPER, 0),
        ("dense_cuda", HOPPER, 1),
    )]  # fmt: skip
    names = [each.launches.names for each in sources]
    assert names[3] == names[4] and len(set(names)) == 4


def test_a_function_that_does_more_is_not_taken_apart() -> None:
    """Here it calls something else on the host."""
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name("main")
        x, y = (T.arg(name, T.buffer((64,), "float32", layout=None)) for name in "xy")
        T.evaluate(T.call_packed("anything", x.data))
        with T.launch_thread("threadIdx.x", 64) as thread:
            T.buffer_store(y, x[thread], [thread])
    assert KernelSource.of(builder.get(), HOPPER) is None


@pytest.mark.parametrize("damage", [{}, [], None, {"arguments": [], "workspaces": [], "launches": [{"kernel": "k"}]}])
def test_launches_that_are_none_are_refused(damage: object) -> None:
    """With an error of those that reading JSON raises."""
    with pytest.raises((KeyError, TypeError, ValueError)):
        Launches.from_json(damage)
