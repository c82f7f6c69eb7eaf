"""Kernels that start while the one before them ends: what their code says, and that they still follow each other."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import tvm
from cuda_emulator import build_source, kernels
from tvm import s_tir, te, tirx
from tvm.target import Target

from tvm_sparse.codegen import lowering
from tvm_sparse.conv import reference
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.measure.call_row import Row
from tvm_sparse.measure.cuda_graph_timer import GraphTimer
from tvm_sparse.schedules.lookup import find_space, make_kernel
from tvm_sparse.scheduling.annotations import DependentLaunch, Order
from tvm_sparse.scheduling.kernel import Kernel, apply_decisions
from tvm_sparse.target.gpu import CARDS, GpuInfo, gpu_info
from tvm_sparse.target.resolve import resolve_target

HOPPER, AMPERE = (Target({"kind": "cuda", "arch": arch}, host={"kind": "llvm"}) for arch in ("sm_90", "sm_80"))
# Input and output are alike, so that kernels can follow each other.
SPEC = ConvSpec(4, 8, 14, 14, 8, 3, 3, padding=(1, 1, 1, 1))
K_TILES = 4
# Kernels of a chain, as many again between them.
CHAIN = 60


def weight() -> np.ndarray:
    """Small integers, so that sums are exact."""
    rng = np.random.default_rng(0)
    return np.where(rng.random(SPEC.weight_shape) < 0.3, rng.integers(-2, 3, SPEC.weight_shape), 0).astype(np.float32)


def kernel(launch: DependentLaunch, order: Order = Order.STRAIGHT) -> Kernel:
    """Two tiles of output channels, of `K_TILES` k-tiles each."""
    each = find_space("folded_cuda:npq64", SPEC, SparsityPattern.of(weight()), HOPPER)
    values = (4, SPEC.c // K_TILES, 3, order.name.lower(), 1, launch.name.lower())
    return apply_decisions(each, weight(), dict(zip(each.choices, values, strict=True)))


@pytest.mark.parametrize("name", ["folded_cuda", "dense_cuda", "csr_cuda"])
def test_every_kernel_waits_first(name: str) -> None:
    """Where the GPU can start kernels early; before anything is read or written."""
    for target, early in ((HOPPER, True), (AMPERE, False)):
        func = make_kernel(name, SPEC, weight(), target).func
        source = kernels(lowering.build(func, target).imports[0].inspect_source())
        bodies = [each.partition("{\n")[2].lstrip() for each in source.split('extern "C" __global__') if "{\n" in each]
        assert [each.startswith("tvm_sparse_grid_dependency_wait();") for each in bodies] == [early] * len(bodies) != []
        assert ("tvm_sparse_launch_dependents();" in source) <= early


@pytest.mark.parametrize("order", Order)
@pytest.mark.parametrize("launch", DependentLaunch)
def test_the_next_kernel_may_start_where_the_decision_says(launch: DependentLaunch, order: Order) -> None:
    """Once in each tile's code at most, behind the last k-tile's barrier, or before anything else."""
    source, (found,) = build_source(kernel(launch, order).func, HOPPER)
    before, *after = kernels(source).split("tvm_sparse_launch_dependents();")
    assert (
        len(after) == {DependentLaunch.AT_EXIT: 0, DependentLaunch.AT_ONCE: 1, DependentLaunch.LAST_K_TILE: 2}[launch]
    )
    if launch == DependentLaunch.AT_ONCE:
        assert "x_ptr[" not in before.rpartition("{\n")[2] and "__syncthreads" not in before
    if launch == DependentLaunch.LAST_K_TILE:
        assert [each.count("__syncthreads();") for each in (before, *after)] == [K_TILES, K_TILES, 0]
        assert all("out_ptr[" in each for each in after)
    blocks = math.prod(found.grid)
    assert (found.shared >= gpu_info(HOPPER).spread_bytes(blocks)) == (launch == DependentLaunch.AT_ONCE)


@pytest.mark.parametrize("gpu", [each for each in CARDS if each.has_dependent_launch], ids=lambda each: each.name)
def test_a_multiprocessor_holds_its_share_of_the_blocks(gpu: GpuInfo) -> None:
    """And not one more; what a block takes beyond what it asks for is counted."""
    for blocks in (1, gpu.multiprocessors, gpu.multiprocessors + 1, 1000, 10**6):
        share = math.ceil(blocks / gpu.multiprocessors)
        taken = gpu.spread_bytes(blocks) + gpu.reserved_bytes
        assert (share + 1) * taken > gpu.shared_bytes
        assert share * taken <= gpu.shared_bytes or share > gpu.blocks


def test_where_kernels_do_not_overlap_there_is_nothing_to_decide() -> None:
    """On GPUs before compute capability 9.0."""
    for arch, expected in (("sm_80", [0]), ("sm_120", list(DependentLaunch)), ("sm_90a", list(DependentLaunch))):
        target = Target({"kind": "cuda", "arch": arch}, host={"kind": "llvm"})
        each = find_space("folded_cuda", SPEC, SparsityPattern.of(weight()), target)
        assert list(each.choices["dependent_launch"].values) == expected
    assert not gpu_info(resolve_target("llvm")).has_dependent_launch


@pytest.mark.gpu
@pytest.mark.parametrize("recorded", [False, True])
def test_kernels_that_start_early_see_what_the_ones_before_wrote(recorded: bool) -> None:
    """A long chain over two buffers, of kernels of all launches in turn, each of which needs the last one's output."""
    target, device = resolve_target("cuda"), tvm.cuda(0)
    modules = [lowering.build(kernel(launch).func, target) for launch in DependentLaunch]
    x = np.random.default_rng(1).integers(-2, 3, SPEC.input_shape).astype(np.float32)
    # Each kernel runs on the remainder of the last one's output, so that numbers stay exact: see `modulo`.
    expected = x
    for _ in range(CHAIN):
        expected = modulo(reference.reference(SPEC, expected, weight()).value)
    buffers = [tvm.runtime.tensor(x, device), tvm.runtime.tensor(np.full_like(x, np.nan), device)]
    remainder = _remainder(target)

    def chain() -> None:
        for index in range(CHAIN):
            modules[index % len(modules)]["main"](*buffers)
            remainder["main"](*reversed(buffers))

    chain()
    device.sync()
    np.testing.assert_array_equal(buffers[0].numpy(), expected)
    if recorded:
        buffers[0].copyfrom(x)
        device.sync()
        timer = GraphTimer(device, Row([chain]))
        timer.time_us()
        timer.close()
        np.testing.assert_array_equal(buffers[0].numpy(), expected)


def modulo(values: np.ndarray) -> np.ndarray:
    """Small numbers again."""
    return np.fmod(values, 7).astype(np.float32)


def _remainder(target: Target) -> Any:
    """`modulo` as a kernel of the same pipeline, which loads directly."""
    y = te.placeholder(SPEC.output_shape, "float32", "y")
    x = te.compute(SPEC.output_shape, lambda *at: tirx.fmod(y[at], tirx.const(7.0, "float32")), "x")
    sch = s_tir.Schedule(te.create_prim_func([y, x]))
    block, thread = sch.split(sch.fuse(*sch.get_loops("x")), [None, 64])
    sch.bind(block, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    return lowering.build(sch.mod["main"].with_attr("tirx.is_scheduled", True), target)
