"""Multiply-adds as assembly of AArch64, under an emulator: the same sums as LLVM's own code, to the last bit."""

import re

import numpy as np
import pytest
from emulated import TARGET, call, why_not_emulated
from parameters import by_turns

from tvm_sparse.codegen import lowering
from tvm_sparse.codegen.folding.fma_assembly import AssemblyChains
from tvm_sparse.conv import reference
from tvm_sparse.conv.random_weights import normal_weight
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.schedules.lookup import find_space, make_kernel
from tvm_sparse.target.resolve import resolve_target

NEON = resolve_target(TARGET)
SPECS = (
    ConvSpec(1, 6, 9, 9, 8, 3, 3, padding=(1, 1, 1, 1), bias=True, relu=True),
    # Taps in four phases of the input.
    ConvSpec(2, 8, 14, 14, 12, 3, 3, stride=(2, 2), padding=(1, 1, 1, 1)),
    ConvSpec(1, 16, 7, 7, 24, 1, 1, residual=True),
    ConvSpec(1, 8, 12, 20, 8, 3, 5, padding=(2, 4, 2, 4), dilation=(2, 2), groups=2),
    # Inputs so far apart that their bases move: by one addition, and by a number of more than 24 bits.
    ConvSpec(1, 12, 64, 64, 3, 3, 3),
    ConvSpec(1, 64, 300, 304, 2, 1, 1),
)
WIDE = ConvSpec(1, 4, 8, 8, 64, 3, 3, padding=(1, 1, 1, 1))
emulated = pytest.mark.skipif(bool(why_not_emulated()), reason=why_not_emulated() or "runs")


def tensors_of(kernel, spec):
    arguments = reference.random_arguments(spec, 2)
    epilogue = [arguments[name] for name in ("bias", "residual") if name in arguments]
    return arguments, [arguments["x"], *kernel.constants, *epilogue, np.full(spec.output_shape, np.nan, np.float32)]


def check(monkeypatch, kernel, spec, weight, folder):
    """The assembly's result is that of the code that LLVM makes of the same chains, and right."""
    arguments, tensors = tensors_of(kernel, spec)
    built = lowering.build(kernel.func, NEON)
    assert "fmla v" in str(built.inspect_source("ll"))
    found = call(built, tensors, folder)
    expected = reference.reference(spec, arguments["x"], weight, arguments.get("bias"), arguments.get("residual"))
    assert expected.worst(found) <= 1
    with monkeypatch.context() as patch:
        patch.setattr(AssemblyChains, "takes", lambda *_: False)
        built = lowering.build(kernel.func, NEON)
    assert "asm sideeffect" not in str(built.inspect_source("ll"))
    assert np.array_equal(found, call(built, tensors, folder))


def wide_kernel(weight):
    """One whose accumulators are more than registers."""
    space = find_space("folded_cpu", WIDE, SparsityPattern.of(weight), NEON)
    decisions = {**space.decisions_of(space.scheduled(None)), "filters": 32}
    assert space.obstacle_of(space.scheduled(decisions))
    return make_kernel(space.name, WIDE, weight, NEON, decisions)


@emulated
@pytest.mark.parametrize(
    ("spec", "density"), by_turns(SPECS, (0.1, 1.0), 2), ids=lambda value: getattr(value, "key", value)
)
def test_the_same_products_are_added_in_the_same_order(monkeypatch, tmp_path, spec, density):
    weight = normal_weight(spec, density, 1)
    check(monkeypatch, make_kernel("folded_cpu", spec, weight, NEON), spec, weight, tmp_path)


@emulated
def test_more_accumulators_than_registers_are_several_blocks(monkeypatch, tmp_path):
    weight = normal_weight(WIDE, 0.3, 1)
    check(monkeypatch, wide_kernel(weight), WIDE, weight, tmp_path)


@emulated
@pytest.mark.parametrize("schedule", ["csr_cpu", "dense_cpu"])
def test_other_schedules_run_too(tmp_path, schedule):
    weight = normal_weight(SPECS[0], 0.3, 1)
    kernel = make_kernel(schedule, SPECS[0], weight, NEON)
    arguments, tensors = tensors_of(kernel, SPECS[0])
    found = call(lowering.build(kernel.func, NEON), tensors, tmp_path)
    assert reference.reference(SPECS[0], arguments["x"], weight, arguments["bias"]).worst(found) <= 1


def blocks(kernel):
    """The instructions of each block of assembly that multiplies."""
    text = str(lowering.build(kernel.func, NEON).inspect_source("ll"))
    found = {each for each in re.findall(r'asm sideeffect "(.*?)"', text) if "fmla" in each}
    assert found
    return [each.split("\\0A") for each in found]


def test_registers_are_those_of_the_processor():
    for lines in blocks(wide_kernel(normal_weight(WIDE, 0.3, 1))):
        numbers = {int(each) for line in lines for each in re.findall(r"\b[vq](\d+)", line)}
        assert max(numbers) <= 31


def test_loads_are_within_reach_of_their_bases():
    for spec in SPECS:
        for lines in blocks(make_kernel("folded_cpu", spec, normal_weight(spec, 0.3, 1), NEON)):
            distances = [int(each) for line in lines for each in re.findall(r"\[x\d+, #(-?\d+)\]", line)]
            assert all(0 <= each <= 65520 and each % 16 == 0 for each in distances)


def test_four_weights_are_one_load_and_an_input_that_is_used_again_is_loaded_once():
    spec = ConvSpec(1, 2, 4, 4, 4, 1, 1)
    (lines,) = blocks(make_kernel("folded_cpu", spec, normal_weight(spec, 1.0, 0), NEON))
    products = [line for line in lines if line.startswith("fmla")]
    weights = [line for line in lines if line.startswith("ldr") and "[x13" in line]
    others = [line for line in lines if line.startswith("ldr") and line not in weights]
    # Two inputs and four filters: eight weights, and an input of each vector is multiplied by four of them.
    vectors = len(products) // 8
    assert vectors and len(products) == 8 * vectors
    assert len(weights) == 2
    # Accumulators are loaded as well.
    assert len(others) == 4 * vectors + 2 * vectors
