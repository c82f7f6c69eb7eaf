"""Vector units of processors."""

import pytest
from tvm.target import Target

from tvm_sparse.target.cpu_info import CpuInfo


@pytest.mark.parametrize(
    ("mcpu", "machine", "lanes", "registers", "name"),
    [
        ("znver5", "x86_64", 16, 32, "zmm"),
        ("skylake-avx512", "x86_64", 16, 32, "zmm"),
        ("x86-64-v3", "x86_64", 8, 16, "ymm"),
        ("cortex-a76", "aarch64", 4, 32, "v"),
        ("neoverse-n1", "aarch64", 4, 32, "v"),
        ("neoverse-v1", "aarch64", 4, 32, "v"),
        ("neoverse-v2", "aarch64", 4, 32, "v"),
        ("apple-a14", "aarch64", 4, 32, "v"),
        ("apple-m4", "aarch64", 4, 32, "v"),
    ],
)
def test_processors_that_have_assembly(mcpu, machine, lanes, registers, name):
    found = CpuInfo.of_processor(mcpu, machine)
    assert (found.lanes, found.registers, found.register_name) == (lanes, registers, name)


@pytest.mark.parametrize(("mcpu", "machine"), [("x86-64-v2", "x86_64"), ("cortex-a15", "armv7l")])
def test_code_of_others_is_left_to_llvm(mcpu, machine):
    found = CpuInfo.of_processor(mcpu, machine)
    assert found.lanes == 4
    assert not found.register_name


def test_a_name_of_another_architecture_is_not_known():
    assert CpuInfo.of_processor("znver5", "aarch64") is None
    assert CpuInfo.of_processor("cortex-a76", "x86_64") is None


def test_a_target_says_as_much_as_its_processor():
    target = Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "neoverse-n1"})
    assert CpuInfo.of(target) == CpuInfo.of_processor("neoverse-n1", "aarch64")


@pytest.mark.parametrize("architecture", ["", "bogus", "x86_64 +avx", "\0"])
def test_llvm_is_not_asked_for_what_makes_it_crash(architecture):
    assert CpuInfo.of_processor("znver4", architecture) is None
