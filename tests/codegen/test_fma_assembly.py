"""Multiply-adds as assembly: the same sums as LLVM's own code, to the last bit, with every non-zero once."""

import math
import re
from collections import Counter

import numpy as np
import pytest
from parameters import sampled
from random_convolutions import run

from tvm_sparse.codegen import lowering
from tvm_sparse.codegen.folding.fma_assembly import AssemblyChains
from tvm_sparse.conv import reference
from tvm_sparse.conv.random_weights import normal_weight
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.errors import BuildError
from tvm_sparse.schedules.lookup import find_space, make_kernel
from tvm_sparse.scheduling import code_size
from tvm_sparse.target.compatibility import why_not_here
from tvm_sparse.target.cpu_info import CpuInfo
from tvm_sparse.target.resolve import resolve_target

SPECS = (
    ConvSpec(1, 6, 9, 9, 8, 3, 3, padding=(1, 1, 1, 1), bias=True, relu=True),
    ConvSpec(2, 8, 14, 14, 12, 3, 3, stride=(2, 2), padding=(1, 1, 1, 1)),
    ConvSpec(1, 16, 7, 7, 24, 1, 1, residual=True),
    ConvSpec(1, 8, 12, 20, 8, 3, 5, padding=(2, 4, 2, 4), dilation=(2, 2), groups=2),
)
WIDE = ConvSpec(1, 4, 8, 8, 64, 3, 3, padding=(1, 1, 1, 1))


@pytest.fixture(params=["x86-64-v3", "x86-64-v4"])
def target(request):
    found = resolve_target({"kind": "llvm", "mcpu": request.param, "num-cores": 1})
    obstacle = why_not_here(found)
    if obstacle:
        pytest.skip(f"{request.param}: {obstacle}")
    return found


def source(kernel, target):
    return str(lowering.build(kernel.func, target).inspect_source("ll"))


def check(monkeypatch, kernel, spec, target):
    """The assembly's result is that of the code that LLVM makes of the same chains."""
    arguments = reference.random_arguments(spec, 2)
    found = run(kernel, spec, arguments, target)
    assert "vfmadd231ps" in source(kernel, target)
    with monkeypatch.context() as patch:
        patch.setattr(AssemblyChains, "takes", lambda *_: False)
        assert "vfmadd231ps" not in source(kernel, target)
        assert np.array_equal(found, run(kernel, spec, arguments, target))


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.key)
@pytest.mark.parametrize("density", sampled([0.1, 1.0], [0.1]))
def test_the_same_products_are_added_in_the_same_order(monkeypatch, target, spec, density):
    kernel = make_kernel("folded_cpu", spec, normal_weight(spec, density, 1), target)
    check(monkeypatch, kernel, spec, target)


def wide_kernel(weight, target):
    """One whose accumulators are more than any CPU has registers."""
    space = find_space("folded_cpu", WIDE, SparsityPattern.of(weight), target)
    default = space.decisions_of(space.scheduled(None))
    decisions = {**default, "filters": 32, "vectors": [1, math.prod(default["vectors"]), 1]}
    schedule = space.scheduled(decisions)
    assert space.obstacle_of(schedule)
    return make_kernel(space.name, WIDE, weight, target, decisions)


def test_more_accumulators_than_registers_are_several_blocks(monkeypatch, target):
    kernel = wide_kernel(normal_weight(WIDE, 0.3, 1), target)
    check(monkeypatch, kernel, WIDE, target)
    used = set(map(int, re.findall(rf"%{CpuInfo.of(target).register_name}(\d+)", source(kernel, target))))
    assert used <= set(range(CpuInfo.of(target).registers))


def test_each_weight_is_in_the_table_once_for_each_vector_it_multiplies(target):
    weight = normal_weight(WIDE, 0.2, 3)
    text = source(wide_kernel(weight, target), target)
    tables = re.findall(r"_weights\.?\d* = .*?\[\d+ x float\] \[(.*?)\]", text)
    values = [each.split()[1] for table in tables for each in table.split(", ")]
    found = Counter(np.frombuffer(bytes.fromhex(v[2:]), ">f8")[0] if v.startswith("0x") else float(v) for v in values)
    expected = Counter(weight[weight != 0].astype(np.float64).tolist())
    assert found.keys() == expected.keys()
    assert len({found[value] / count for value, count in expected.items()}) == 1
    # A multiply-add for each native vector of each; nothing else computes.
    assert text.count("vfmadd231ps") % len(values) == 0
    assert not re.search(r"vmulps|vaddps|llvm\.fmuladd", text)


def test_an_input_that_is_used_again_is_loaded_once(target):
    spec = ConvSpec(1, 2, 4, CpuInfo.of(target).lanes, 4, 1, 1)
    text = source(make_kernel("folded_cpu", spec, normal_weight(spec, 1.0, 0), target), target)
    (block,) = {each for each in re.findall(r'asm sideeffect "(.*?)"', text) if "vfmadd231ps" in each}
    products = [line for line in block.split("\\0A") if line.startswith("vfmadd231ps")]
    assert products
    # Each input is multiplied by all four filters, from a register.
    assert not [line for line in products if "($0)" in line]
    loads = [line for line in block.split("\\0A") if line.startswith("vmovups") and "($0)" in line]
    assert len(loads) * 4 == len(products) and len(set(loads)) == len(loads)


def test_too_much_code_is_refused(monkeypatch, target):
    spec, weight = SPECS[0], normal_weight(SPECS[0], 0.3, 1)
    kernel = make_kernel("folded_cpu", spec, weight, target)
    monkeypatch.setattr(code_size, "MAX_ASSEMBLED", 5)
    with pytest.raises(BuildError, match=r"multiply-adds; allowed: up to 5; use a smaller"):
        lowering.build(kernel.func, target)
    monkeypatch.setattr(code_size, "MAX_ASSEMBLED", 10**6)
    monkeypatch.setattr(code_size, "MAX_MULTIPLY_ADDS", 5)
    lowering.build(kernel.func, target)


def test_other_processors_have_code_from_llvm():
    other = resolve_target({"kind": "llvm", "mcpu": "x86-64-v2", "num-cores": 1})
    kernel = make_kernel("folded_cpu", SPECS[0], normal_weight(SPECS[0], 0.3, 1), other)
    assert "asm sideeffect" not in source(kernel, other)
