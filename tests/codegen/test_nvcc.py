"""How TVM is made to compile CUDA code: settings that threads share, and local arrays as scalars."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm.target import Target

from tvm_sparse.codegen import lowering
from tvm_sparse.codegen.cuda import nvcc
from tvm_sparse.codegen.cuda.nvcc import as_scalars, cuda_compiler
from tvm_sparse.codegen.cuda.separate_compilation import TranslationUnit
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.schedules.lookup import make_kernel

HOPPER, AMPERE = (Target({"kind": "cuda", "arch": arch}, host={"kind": "llvm"}) for arch in ("sm_90", "sm_80"))
SPEC = ConvSpec(1, 8, 10, 10, 8, 3, 3, padding=(1, 1, 1, 1), bias=True)
HOOKS = ("tvm_callback_cuda_postproc", "tvm_callback_cuda_compile")
SETTINGS = ("TVM_CUDA_COMPILE_MODE", "TVM_CUDA_NVCC_NO_FAST_MATH", "TVM_CUDA_NVRTC_EXTRA_OPTS")
# Threads that build at a time, and how long one waits for another, seconds.
BUILDS, PATIENCE = 4, 120


def shared_state() -> tuple[dict, list]:
    """The environment, and TVM's global functions that builds set."""
    return dict(os.environ), [tvm_ffi.get_global_func(name, allow_missing=True) for name in HOOKS]


def assert_unchanged(before: tuple[dict, list]) -> None:
    """The environment and the functions are those of `before`."""
    variables, functions = shared_state()
    assert variables == before[0]
    for found, expected in zip(functions, before[1], strict=True):
        assert found is expected is None or found.same_as(expected)


def weight(seed: int) -> np.ndarray:
    """A sparse weight."""
    rng = np.random.default_rng(seed)
    return np.where(rng.random(SPEC.weight_shape) < 0.3, rng.standard_normal(SPEC.weight_shape), 0).astype(np.float32)


def source_of(func: tvm.tirx.PrimFunc) -> str:
    """What is generated for one kernel."""
    return lowering.build(func, HOPPER).imports[0].inspect_source()


def in_threads(function: Callable[[int], object]) -> list:
    """What `function` returns for each number below `BUILDS`, called at the same time."""
    with ThreadPoolExecutor(BUILDS) as pool:
        return list(pool.map(function, range(BUILDS)))


def test_threads_that_build_share_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """All build at a time, and the first to come goes first: the last one restores what was there before the first."""
    monkeypatch.setenv(SETTINGS[2], "--split-compile=1")
    monkeypatch.delenv(SETTINGS[1], raising=False)
    functions = [make_kernel("folded_cuda", SPEC, weight(seed), HOPPER).func for seed in range(BUILDS)]
    alone = [source_of(func) for func in functions]
    before, compile_, own = shared_state(), tvm.compile, threading.local()
    came, went = ([threading.Event() for _ in range(BUILDS)] for _ in range(2))
    seen: list[list[str | None]] = []

    def in_step(*arguments: object, **options: object) -> object:
        came[own.number].set()
        assert all(event.wait(PATIENCE) for event in came)
        built = compile_(*arguments, **options)
        assert own.number == 0 or went[own.number - 1].wait(PATIENCE)
        seen.append([os.environ.get(name) for name in SETTINGS])
        return built

    def build(number: int) -> str:
        own.number = number
        assert number == 0 or came[number - 1].wait(PATIENCE)
        source = source_of(functions[number])
        went[number].set()
        return source

    monkeypatch.setattr(tvm, "compile", in_step)
    assert in_threads(build) == alone
    assert all("conv_local_ptr_at_0" in source for source in alone)
    mode, no_fast_math, options = seen[0]
    assert mode in ("nvcc", "nvrtc") and no_fast_math == "1"
    assert options == "--split-compile=1 --ftz=false --prec-div=true --prec-sqrt=true"
    assert seen == [seen[0]] * BUILDS
    assert_unchanged(before)


def test_builds_in_no_order_leave_nothing_behind() -> None:
    """As threads come and go, also of targets without CUDA."""
    cpu = Target({"kind": "llvm", "num-cores": 1})
    jobs = [("folded_cuda", HOPPER), ("dense_cuda", AMPERE), ("folded_cpu", cpu), ("csr_cuda", HOPPER)]
    functions = [make_kernel(name, SPEC, weight(0), target).func for name, target in jobs]
    before = shared_state()

    def build(number: int) -> list[str]:
        found = []
        for func, (_, target) in zip(
            functions[number:] + functions[:number], jobs[number:] + jobs[:number], strict=True
        ):
            module = lowering.build(func, target)
            found.append(module.imports[0].inspect_source() if module.imports else "")
        return found[-number:] + found[:-number] if number else found

    first, *others = in_threads(build)
    assert others == [first] * (BUILDS - 1)
    assert_unchanged(before)


def test_threads_compile_for_their_own_target(monkeypatch: pytest.MonkeyPatch) -> None:
    """The translation units of each thread's source, while another's target is another."""
    monkeypatch.setenv(SETTINGS[0], "nvcc")
    monkeypatch.setattr(nvcc, "split", lambda source: [TranslationUnit(source)] * 2)
    monkeypatch.setattr(nvcc, "_compile_units", lambda units, target: f"{units[0].source} {target.attrs['arch']}")
    together = threading.Barrier(BUILDS)

    def compiled(number: int) -> str:
        with cuda_compiler((HOPPER, AMPERE)[number % 2]):
            together.wait(PATIENCE)
            return tvm_ffi.get_global_func(HOOKS[1])(str(number))

    before = shared_state()
    assert in_threads(compiled) == ["0 sm_90", "1 sm_80", "2 sm_90", "3 sm_80"]
    assert_unchanged(before)


def test_a_build_that_fails_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither on its own nor within another; what the outer one set stays until it ends."""

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no memory")

    func = make_kernel("csr_cuda", SPEC, weight(0), HOPPER).func
    before = shared_state()
    monkeypatch.setattr(tvm, "compile", fail)
    with cuda_compiler(HOPPER):
        with pytest.raises(RuntimeError, match="no memory"):
            lowering.build(func, HOPPER)
        assert os.environ[SETTINGS[1]] == "1"
    assert_unchanged(before)
    with pytest.raises(RuntimeError, match="no memory"):
        lowering.build(func, HOPPER)
    assert_unchanged(before)


def test_accumulators_become_variables() -> None:
    """Unless an index is computed; then the array stays."""
    text = "alignas(64) float acc[2];\nalignas(64) float acc_1[1];\nacc[1] = acc[0] + acc_1[0];\n"
    assert as_scalars(text) == "float acc_at_0, acc_at_1;\nfloat acc_1_at_0;\nacc_at_1 = acc_at_0 + acc_1_at_0;\n"
    for use in ("acc[i]", "f(acc)", "acc[0 + 1]"):
        assert as_scalars(f"{text}{use};\n").startswith("alignas(64) float acc[2];\nfloat acc_1_at_0;")
    source = source_of(make_kernel("folded_cuda", SPEC, weight(0), HOPPER).func)
    assert re.search(r"float conv_local_ptr_at_0\b", source)
