"""Facts about GPUs: found by target alone, and the same as ever where logs rely on them."""

from dataclasses import replace

import pytest
from tvm.target import Target

from tvm_sparse.target.gpu import CARDS, capability_of, card, gpu_info
from tvm_sparse.target.resolve import resolve_target


@pytest.mark.parametrize(
    ("arch", "name"),
    [
        ("sm_80", "NVIDIA A100"),
        ("sm_86", "NVIDIA GeForce RTX 3090"),
        ("sm_89", "NVIDIA GeForce RTX 4090"),
        ("sm_90", "NVIDIA H200"),
        ("sm_90a", "NVIDIA H200"),
        ("sm_100", "NVIDIA B200"),
        ("sm_103", "NVIDIA B200"),
        ("sm_120", "NVIDIA GeForce RTX 5090"),
        ("sm_75", "NVIDIA GeForce RTX 3090"),
    ],
)
def test_an_architecture_has_a_card(arch, name):
    found = gpu_info(Target({"kind": "cuda", "arch": arch}))
    assert (found.name, found.compute_capability) == (name, capability_of(arch))
    assert found.has_clusters == found.has_dependent_launch == (capability_of(arch) >= 90)


def test_the_h200_is_as_logs_know_it():
    """Kernels of shipped logs depend on these."""
    gpu = gpu_info(Target({"kind": "cuda", "arch": "sm_90"}))
    assert (gpu.multiprocessors, gpu.cluster_multiprocessors, gpu.shared_bytes) == (132, 120, 233472)
    assert (gpu.reserved_bytes, gpu.shared_unit_bytes, gpu.level_2_bytes) == (1024, 128, 50e6)
    assert [gpu.spread_bytes(blocks) for blocks in (1, 132, 133, 1000)] == [115840, 115840, 76928, 24960]


@pytest.mark.parametrize("each", CARDS, ids=lambda each: each.name)
def test_facts_are_plausible(each):
    """Rates follow from multiprocessors and clock: 64 to 128 multiply-adds a cycle."""
    assert 0.9 * 64 < each.flops_s / (2 * each.multiprocessors * each.clock_hz) < 1.1 * 128
    assert each.flops_s <= 1.01 * each.tf32_flops_s
    assert each.level_2_bytes < each.dram_bytes_s / 1000
    assert each.block_shared_bytes == each.shared_bytes - each.reserved_bytes
    assert each.cluster_multiprocessors <= each.multiprocessors
    assert card(each.compute_capability, each.name) == each


@pytest.mark.parametrize(
    ("capability", "model", "name"),
    [
        (80, "NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-40GB"),
        (80, "NVIDIA A100 80GB PCIe, 108 multiprocessors", "NVIDIA A100"),
        (86, "NVIDIA A10G", "NVIDIA A10G"),
        (86, "NVIDIA A10", "NVIDIA A10"),
        (89, "NVIDIA L4", "NVIDIA L4"),
        (89, "NVIDIA L40S, 142 multiprocessors", "NVIDIA L40S"),
        (90, "NVIDIA H100 80GB HBM3", "NVIDIA H100"),
        (90, "NVIDIA H100 PCIe", "NVIDIA H100 PCIe"),
        (120, "NVIDIA RTX PRO 6000 Blackwell Server Edition", "NVIDIA RTX PRO 6000"),
        (89, "nothing known", "NVIDIA GeForce RTX 4090"),
    ],
)
def test_a_card_is_found_by_what_the_driver_calls_it(capability, model, name):
    assert card(capability, model).name == name


def test_multiprocessors_are_those_that_the_target_says():
    """Of a card that is not in the table, or of a part of one."""
    model = "NVIDIA GeForce RTX 4070, 46 multiprocessors"
    target = resolve_target({"kind": "cuda", "arch": "sm_89", "model": model})
    whole, found = card(89), gpu_info(target)
    flops_s, tf32_flops_s = (46 / 128 * each for each in (whole.flops_s, whole.tf32_flops_s))
    rates = {"flops_s": pytest.approx(flops_s), "tf32_flops_s": pytest.approx(tf32_flops_s)}
    assert found == replace(whole, name=model, multiprocessors=46, **rates)
    assert found.spread_bytes(46) == whole.spread_bytes(128)
