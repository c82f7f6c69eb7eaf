"""Folded kernels that multiply and add two outputs at a time in float16, on random convolutions."""

import random
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
from cuda_emulator import build_source, run_emulated
from random_convolutions import Case, random_half_case, random_kernel, random_weight
from tvm.target import Target

from tvm_sparse.conv import reference
from tvm_sparse.conv.error_bounds import HALF_SUMS, HALF_SUMS_BLOCK
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.schedules import folded_half_cuda
from tvm_sparse.schedules.lookup import arithmetic_of, family_of, find_space, precision_of, schedule_names, spaces_of
from tvm_sparse.scheduling.kernel import apply_decisions

CUDA = Target({"kind": "cuda", "arch": "sm_90"}, host={"kind": "llvm"})
SPEC = ConvSpec(2, 8, 14, 28, 16, 3, 3, padding=(1, 1, 1, 1), bias=True, relu=True, dtype="float16")
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++ to emulate CUDA code")


def sparse_case(spec, density=0.2):
    weight = random_weight(spec, density, "unstructured", 0, integers=False)
    return Case(spec, weight, 0, integers=False).stored_in("float16")


def found_spaces(case):
    return spaces_of(case.spec, SparsityPattern.of(case.weight), CUDA, [folded_half_cuda.NAME])


def emulated(case, kernel):
    return run_emulated(case, kernel, CUDA)


def expected(case):
    """The reference in float32 sums, and the one with the bound of these kernels."""
    arguments = reference.random_arguments(case.spec, case.seed, case.integers)
    exact = reference.reference(case.spec, weight=case.weight, **arguments)
    return exact, exact.within(HALF_SUMS, case.weight)


@needs_compiler
@pytest.mark.parametrize("count", [4, pytest.param(10, marks=pytest.mark.exhaustive)])
def test_random_convolutions_match_the_reference(count):
    served = 0
    for seed in range(count):
        choose = random.Random(seed).choice
        case = random_half_case(choose)
        found, reasons = found_spaces(case)
        if not found:
            assert reasons[folded_half_cuda.NAME]
            continue
        served += 1
        y = emulated(case, random_kernel(choose(found), case.weight, choose))
        assert case.error(reference.random_arguments(case.spec, case.seed, case.integers), y, HALF_SUMS) <= 1, repr(
            case
        )
    assert served >= count


@needs_compiler
def test_sums_are_float16_and_are_held_to_their_own_bound():
    case = sparse_case(SPEC)
    y = emulated(case, apply_decisions(found_spaces(case)[0][0], case.weight))
    exact, own = expected(case)
    assert exact.worst(y) > 1 >= own.worst(y) > 0.01


@needs_compiler
@pytest.mark.parametrize("order", [pytest.param("straight", marks=pytest.mark.exhaustive), "rotated"])
def test_blocks_of_products_go_on_from_one_k_tile_to_the_next(order):
    """Also where a thread block begins with another k-tile than the first."""
    case = sparse_case(replace(SPEC, c=24), 0.5)
    space = found_spaces(case)[0][0]
    decisions = space.starts()[0] | {"order": order, "channels": 4, "pipeline_stages": 3}
    y = emulated(case, apply_decisions(space, case.weight, decisions))
    exact, own = expected(case)
    assert exact.worst(y) > 1 >= own.worst(y)


def test_an_error_of_an_output_is_found():
    """The bound lies below what the smallest missing product would change."""
    exact, own = expected(sparse_case(SPEC))
    y = exact.value.astype(np.float16)
    assert own.worst(y) <= 1
    y[0, 0, 0, 0] += np.float16(0.25)
    assert own.worst(y) > 1


def test_no_bound_beyond_the_range_of_float16():
    large = reference.Reference(np.zeros((1, 1, 1, 1)), *[np.full((1, 1, 1, 1), 2e-2)] * 2)
    assert np.isinf(large.within(HALF_SUMS, np.ones((1, 1, 1, 1), np.float32)).bound).all()


def test_an_instruction_has_both_outputs():
    """Half as many multiply-adds as products, in sums of no more blocks than the bound allows."""
    case = sparse_case(replace(SPEC, c=48, bias=False, relu=False), 0.5)
    kernel = apply_decisions(found_spaces(case)[0][0], case.weight)
    source, _ = build_source(kernel.func, CUDA)
    steps = re.findall(r"tvm_sparse_(product|multiply_add)\((?!uint)", source)
    assert len(steps) == np.count_nonzero(case.weight)
    assert not re.search(r"\* 0x", source.partition("conv_local")[2])
    # Each sum is begun by a product, and a block is added to the total whenever one is.
    products = np.count_nonzero(case.weight, axis=(1, 2, 3))
    blocks = sum(-(-each // HALF_SUMS_BLOCK) for each in products)
    assert steps.count("product") == blocks == len(re.findall(r"tvm_sparse_add_sum\((?!float)", source))


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"dtype": "float32"}, "computes in float16"),
        ({"dtype": "bfloat16"}, "computes in float16"),
        ({"w": 27}, "two by two"),
        ({"stride": (1, 2)}, "side by side"),
    ],
)
def test_what_it_does_not_serve(changed, reason):
    case = sparse_case(replace(SPEC, **changed))
    found, reasons = found_spaces(replace(case, spec=replace(SPEC, **changed)))
    assert not found and reason in reasons[folded_half_cuda.NAME]


def test_spaces_are_found_by_name():
    case = sparse_case(SPEC)
    pattern = SparsityPattern.of(case.weight)
    for space in found_spaces(case)[0]:
        assert find_space(space.name, SPEC, pattern, CUDA).name == space.name
    assert find_space(f"{folded_half_cuda.NAME}:multistage-14x28-pixels1x2", SPEC, pattern, CUDA)


def test_it_must_be_asked_for():
    """Its sums are less exact than a model's type lets expect."""
    case = sparse_case(SPEC)
    found, reasons = spaces_of(SPEC, SparsityPattern.of(case.weight), CUDA)
    assert folded_half_cuda.NAME not in {*(each.schedule for each in found), *reasons, *schedule_names(CUDA)}
    assert folded_half_cuda.NAME in schedule_names(CUDA, every=True)


def test_decisions_name_what_it_computes_in():
    assert arithmetic_of(f"{folded_half_cuda.NAME}:multistage-14x28-pixels1x2") == HALF_SUMS
    assert precision_of(folded_half_cuda.NAME, "float16") == "float16, sums too"
    assert family_of(folded_half_cuda.NAME).is_folded
