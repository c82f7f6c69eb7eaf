"""CPU kernels for many threads: work is cut so that these end together, and the results are those of one thread."""

import math

import numpy as np
import pytest
from parameters import by_turns
from random_convolutions import run, vector_weight

from tvm_sparse.conv import reference
from tvm_sparse.conv.random_weights import normal_weight
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.schedules import csr_cpu, dense_cpu, folded_cpu, vector_cpu
from tvm_sparse.schedules.lookup import find_space
from tvm_sparse.scheduling.cpu.cuts import Threads
from tvm_sparse.scheduling.cpu.rows import RowSpace
from tvm_sparse.scheduling.kernel import apply_decisions
from tvm_sparse.target.resolve import resolve_target

AVX512 = {"kind": "llvm", "mcpu": "x86-64-v4"}
PADDED = {"padding": (1, 1, 1, 1)}
SPECS = (
    ConvSpec(2, 8, 12, 12, 8, 3, 3, **PADDED, bias=True, relu=True),
    ConvSpec(1, 8, 14, 14, 16, 3, 3, stride=(2, 2), **PADDED, residual=True),
    # Read as it is; much more is read than written.
    ConvSpec(1, 64, 8, 16, 8, 1, 1, bias=True),
    ConvSpec(1, 8, 8, 16, 64, 1, 1, residual=True),
    # One row of tiles, and a depthwise one.
    ConvSpec(1, 16, 7, 7, 24, 1, 1),
    ConvSpec(1, 16, 7, 7, 16, 3, 3, **PADDED, groups=16, relu=True),
)


@pytest.mark.parametrize(
    ("spec", "schedule"),
    by_turns(SPECS, (dense_cpu, folded_cpu, csr_cpu, vector_cpu), 2),
    ids=lambda each: each.key if isinstance(each, ConvSpec) else each.NAME,
)
def test_any_number_of_threads_computes_the_same(spec, schedule):
    """Exactly, by default and with the most of each decision, of which fewer may be taken."""
    weight = vector_weight(spec, 2, 1.0 if schedule is dense_cpu else 0.3, 1, integers=True)
    arguments = reference.random_arguments(spec, 2, integers=True)
    expected = reference.reference(spec, weight=weight, **arguments).value
    pattern = SparsityPattern.of(weight, spec.groups)
    if schedule is vector_cpu and not vector_cpu.shared_filters(spec, pattern.vector):
        pytest.skip("no filters share their zeros")
    for threads in (3, 16):
        target = resolve_target({"kind": "llvm", "num-cores": threads, "opt-level": 0})
        for space, takes_most in zip(schedule.spaces(spec, pattern, target), (False, True), strict=False):
            decisions = space.starts()[0]
            if takes_most:
                known = [name for name in ("row_groups", "blocks") if name in decisions]
                decisions = {**decisions, **{name: max(space.choices[name].values) for name in known}}
            assert space.decisions_of(space.scheduled(decisions)) == decisions
            found = run(apply_decisions(space, weight, decisions), spec, arguments, target)
            np.testing.assert_array_equal(found, expected, err_msg=f"{space.name}, {threads} threads")


@pytest.mark.parametrize("threads", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("size", [112, 56, 28, 14])
def test_blocks_of_rows_are_shared_evenly(size, threads):
    """The busiest thread has at most a quarter more rows than its share, or one."""
    spec = ConvSpec(1, 64, size, size, 64, 3, 3, **PADDED)
    groups = Threads(threads, 3686, 16).groups_of_task(spec, 1, size, packs=True, tiles=1)
    busiest = math.ceil(size / groups / threads) * groups
    assert busiest <= max(1.25 * size / threads, size / threads + 1)


def test_one_thread_takes_what_was_decided():
    spec = ConvSpec(1, 64, 56, 56, 64, 3, 3, **PADDED)
    alone = Threads(1, 3686, 16)
    assert [alone.groups_of_task(spec, 1, most, True, 1) for most in (1, 4, 14, 56)] == [1, 4, 14, 56]


@pytest.mark.parametrize(
    ("spec", "first"),
    [
        # Code is shorter than the input that all threads would read.
        (ConvSpec(1, 128, 28, 28, 128, 3, 3, **PADDED), "block"),
        (ConvSpec(1, 1024, 14, 14, 256, 1, 1), "block"),
        # Longer.
        (ConvSpec(1, 256, 14, 14, 1024, 1, 1), "root"),
        (ConvSpec(1, 256, 14, 14, 256, 3, 3, **PADDED), "root"),
    ],
    ids=lambda value: getattr(value, "key", value),
)
@pytest.mark.parametrize("threads", [4, 16])
def test_threads_share_the_shorter_of_code_and_input(spec, first, threads):
    pattern = SparsityPattern.of(normal_weight(spec, 0.1, 0).astype(np.float32))
    found = folded_cpu.spaces(spec, pattern, resolve_target({**AVX512, "num-cores": threads}))
    assert found[0].pack == first


def test_a_record_whose_blocks_leave_threads_idle_packs_all_first():
    """Two blocks of rows keep two threads busy of sixteen."""
    spec = ConvSpec(1, 64, 56, 56, 64, 3, 3, **PADDED)
    pattern = SparsityPattern.of(normal_weight(spec, 0.1, 0).astype(np.float32))
    packs = {}
    for threads in (1, 2, 16):
        space = find_space(
            "folded_cpu:rows28x58-block", spec, pattern, resolve_target({**AVX512, "num-cores": threads})
        )
        assert isinstance(space, RowSpace) and space.variant == "rows28x58-block"
        packs[threads] = space.pack
    assert packs == {1: "block", 2: "block", 16: "root"}
