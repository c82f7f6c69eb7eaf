"""The registry: each family is listed once, in a file of its name, and nobody learns a trait from a name."""

import re
from pathlib import Path

import pytest

from tvm_sparse import schedules
from tvm_sparse.conv import error_bounds
from tvm_sparse.schedules import FAMILIES
from tvm_sparse.schedules.lookup import UNKNOWN, arithmetic_of, family_of, is_exact, precision_of, title_of

ROOT = Path(__file__).parents[2]


def test_each_file_is_a_family_and_each_family_is_listed():
    files = {path.stem for path in (ROOT / "schedules").glob("*.py")} - {"__init__", "lookup"}
    assert sorted(family.name for family in FAMILIES) == sorted(files)
    assert all(getattr(schedules, family.name).FAMILY is family for family in FAMILIES)


def test_the_last_of_each_target_serves_what_no_other_does():
    for target in ("llvm", "cuda"):
        assert [each for each in FAMILIES if each.target == target][-1].is_dense


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_an_arithmetic_is_one_that_has_a_bound(family):
    known = {value for name, value in vars(error_bounds).items() if name.isupper() and isinstance(value, str)}
    assert {family.arithmetic, *family.arithmetic_of_variants.values()} <= known


def test_a_space_has_the_traits_of_its_family_and_its_variant():
    assert family_of("dense_cudnn:tf32") is family_of("dense_cudnn")
    assert [is_exact(each) for each in ("dense_cudnn:tf32", "dense_cudnn:fp16", "folded_cpu:rows7x7-root")] == [0, 1, 1]
    assert arithmetic_of("plane_cuda") != arithmetic_of("plane_cuda:fp16") == arithmetic_of("slice_cuda:bf16")
    assert precision_of("quad_cuda", "float32") == "3xFP16"
    assert title_of("dense_cudnn:tf32") == "cuDNN TF32" and title_of("csr_cpu:x") == "csr_cpu:x"


def test_what_this_version_does_not_have_is_unknown():
    assert family_of("pair_cuda:single") is UNKNOWN
    assert not (UNKNOWN.is_dense or UNKNOWN.computes_pool) and is_exact("pair_cuda")


def test_nobody_reads_a_name():
    """No `startswith` on the name of a schedule."""
    prefixes = "|".join({family.name.partition("_")[0] for family in FAMILIES} - {"vector", "slice", "data"})
    pattern = re.compile(rf"schedule\S*\.startswith|\.startswith\(\(?['\"]({prefixes})")
    for folder in ("tvm_sparse", "schedules"):
        for path in (ROOT / folder).rglob("*.py"):
            assert not pattern.search(path.read_text()), path
