"""How much longer a record's kernel may take for more non-zeros than it was timed with."""

from __future__ import annotations

import pytest
from factories import make_record, make_weight
from tvm.target import Target

from tvm_sparse.compiler.plan.kernel_growth import growth
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.schedules.lookup import find_space

CUDA = Target({"kind": "cuda", "arch": "sm_90"})
SPEC = ConvSpec(1, 256, 14, 14, 256, 3, 3, padding=(1, 1, 1, 1), bias=True, relu=True)


def times(schedule: str, density: float) -> float:
    """Of a kernel that was timed at density 0.1."""
    few, many = (SparsityPattern.of(make_weight(each, spec=SPEC)) for each in (0.1, density))
    decisions = find_space(schedule, SPEC, few, CUDA).starts()[0]
    record = make_record(spec=SPEC, pattern=few, schedule=schedule, decisions=decisions)
    return growth(record, many, CUDA)


@pytest.mark.parametrize(("schedule", "density"), [("data_cuda", 0.2), ("quad_cuda", 0.4)])
def test_weights_as_data_cost_at_most_in_proportion(schedule: str, density: float) -> None:
    """Their code is the same for any number of them."""
    assert times(schedule, 0.1) == 1
    assert 1 < times(schedule, density) <= density / 0.1
    assert times(schedule, density) <= times(schedule, density + 0.1) <= density / 0.1 + 1


def test_twice_the_weights_cost_nothing_while_positions_find_three_others() -> None:
    """On sparse tensor cores, which multiply two of every four whatever is there."""
    assert times("quad_cuda", 0.2) == pytest.approx(1, rel=1e-6)


def test_code_that_grows_may_cost_more() -> None:
    """As it leaves a cache."""
    assert times("folded_cuda", 0.2) > times("data_cuda", 0.2)
