"""Kernels of tensors in half precision on random convolutions, against the float64 reference of what is stored."""

import random
import re
import shutil
import subprocess
from dataclasses import replace
from itertools import cycle, product

import pytest
from cuda_emulator import build_source, run_emulated
from parameters import sampled
from random_convolutions import Case, random_case, random_kernel, random_linear_case, random_weight
from tvm.target import Target

from tvm_sparse.conv import reference
from tvm_sparse.conv.dtypes import HALVES
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.errors import UsageError
from tvm_sparse.schedules.lookup import find_space, spaces_of
from tvm_sparse.scheduling.kernel import apply_decisions
from tvm_sparse.target.resolve import resolve_target

CUDA = Target({"kind": "cuda", "arch": "sm_90"}, host={"kind": "llvm"})
CPU = resolve_target('{"kind":"llvm","opt-level":0,"num-cores":1}')


def in_one_type(names):
    """Every one with both types, by turns with one of them where tests are not exhaustive."""
    return sampled([*product(names, HALVES)], [*zip(names, cycle(HALVES), strict=False)])


def random_vector_case(choose):
    """A case of vectors of four filters."""
    case = random_case(choose)
    spec = replace(case.spec, k=case.spec.k * 4)
    return replace(case, spec=spec, weight=case.weight.repeat(4, axis=0))


# What draws the convolutions of a schedule, and how many.

CPU_CASES = {
    "dense_cpu": (random_case, 6),
    "folded_cpu": (random_case, 6),
    "csr_cpu": (random_case, 6),
    "vector_cpu": (random_vector_case, 6),
    "linear_cpu": (random_linear_case, 6),
}


@pytest.mark.parametrize(("schedule", "dtype"), in_one_type(CPU_CASES))
def test_matches_the_reference_on_a_cpu(schedule, dtype):
    draw, count = CPU_CASES[schedule]
    for seed in range(count):
        choose = random.Random(seed).choice
        case = draw(choose).stored_in(dtype)
        found, _ = spaces_of(case.spec, SparsityPattern.of(case.weight), CPU, [schedule])
        for space in found[:1]:
            kernel = random_kernel(space, case.weight, choose)
            assert case.worst(kernel, CPU) <= 1, f"{space.name}, {case!r}"


# As above; of some convolutions a schedule of CUDA may have no space.
CUDA_CASES = {
    "folded_cuda": (random_case, 6),
    "csr_cuda": (random_case, 3),
    "dense_cuda": (random_case, 3),
    "linear_cuda": (random_linear_case, 3),
}
# Rows of whole 16-byte copies, and rows of an odd number of elements, which are copied one by one.
EVEN = ConvSpec(1, 4, 16, 32, 8, 3, 3, padding=(1, 1, 1, 1), bias=True, relu=True)
ODD = ConvSpec(4, 8, 7, 7, 8, 3, 3, padding=(1, 1, 1, 1), residual=True)
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++ to emulate CUDA code")
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc on PATH to compile CUDA code")


def sparse_case(spec, dtype):
    """A case of `spec` with a fifth of its weights."""
    return Case(spec, random_weight(spec, 0.2, "unstructured", 0, integers=False), 0, integers=False).stored_in(dtype)


def spaces(case, schedule):
    return spaces_of(case.spec, SparsityPattern.of(case.weight), CUDA, [schedule])[0]


def emulated_error(case, kernel):
    # A library that is loaded must not be written over.
    y = run_emulated(case, kernel, CUDA)
    assert str(y.dtype) == case.spec.dtype
    return case.error(reference.random_arguments(case.spec, case.seed, case.integers), y)


@needs_compiler
@pytest.mark.parametrize(("schedule", "dtype"), in_one_type(CUDA_CASES))
def test_matches_the_reference_on_an_emulated_gpu(schedule, dtype):
    draw, count = CUDA_CASES[schedule]
    checked = 0
    for seed in range(2 * count):
        choose = random.Random(seed).choice
        case = draw(choose).stored_in(dtype)
        found = spaces(case, schedule)
        if found and checked < count:
            kernel = random_kernel(choose(found), case.weight, choose)
            assert emulated_error(case, kernel) <= 1, repr(case)
            checked += 1
    assert checked == count


@needs_compiler
@pytest.mark.parametrize(("spec", "copy"), [(EVEN, "tvm_sparse_cp_async_16"), (ODD, "tvm_sparse_copy_2")])
def test_folded_kernels_stage_what_is_stored_and_sum_in_float32(spec, copy):
    case = sparse_case(spec, "float16")
    space = spaces(case, "folded_cuda")[0]
    kernel = apply_decisions(space, case.weight)
    source, _ = build_source(kernel.func, CUDA)
    assert f"{copy}(" in source
    assert re.search(r"extern __shared__ __align__\(64\) half pack_shared_dyn_ptr", source)
    assert re.search(r"float x = \(\(float\)pack_shared_dyn_ptr\[", source)
    assert not re.search(r"half acc", source)
    assert emulated_error(case, kernel) <= 1


@needs_nvcc
@pytest.mark.parametrize(("name", "dtype"), in_one_type(["csr_cuda", "folded_cuda", "dense_cuda:single-16x32-pixels4"]))
def test_nvcc_compiles_them(name, dtype, tmp_path):
    case = sparse_case(EVEN, dtype)
    space = find_space(name, case.spec, SparsityPattern.of(case.weight), CUDA)
    source, _ = build_source(apply_decisions(space, case.weight).func, CUDA)
    (tmp_path / "kernel.cu").write_text(source)
    command = ["nvcc", "-arch=sm_90", "-std=c++17", "-cubin", "-o", "kernel.cubin", "kernel.cu"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_half_precision_has_room_for_twice_the_channels():
    counts = []
    for dtype in ("float32", "float16"):
        case = sparse_case(EVEN, dtype)
        space = find_space("folded_cuda:multistage-16x32-pixels1", case.spec, SparsityPattern.of(case.weight), CUDA)
        # Filters, rows, images and channels of a tile, then the pipeline.
        counts.append(space.counts([2, 4, 1, 2, 3, 0, 1, 0]))
    wide, narrow = counts
    assert wide.shared_bytes / 2 <= narrow.shared_bytes < wide.shared_bytes
    assert wide.copied_bytes / 2 <= narrow.copied_bytes < wide.copied_bytes
    assert narrow.widened > 0 == wide.widened


def test_a_library_of_float32_kernels_says_that_it_serves_no_other():
    case = sparse_case(EVEN, "float16")
    _, reasons = spaces_of(case.spec, SparsityPattern.of(case.weight), CUDA, ["linear_tensor_cuda"])
    assert reasons == {"linear_tensor_cuda": "its tensors are float16, and only float32 is split"}
    # A record may name it.
    with pytest.raises(UsageError, match="its tensors are float16"):
        find_space("linear_tensor_cuda", case.spec, SparsityPattern.of(case.weight), CUDA)
