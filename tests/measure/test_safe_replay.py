"""Damaged traces: TVM crashes on many, so they are found out before this process replays them, or in another one."""

import contextlib
import copy
import random

import numpy as np
import pytest
from damage import damage_list

from tvm_sparse.autotune.evolutionary_search import SharedModel, SpaceSearch
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.errors import BuildError
from tvm_sparse.measure.safe_replay import Vetting
from tvm_sparse.schedules import find_space
from tvm_sparse.scheduling import trace
from tvm_sparse.scheduling.trace import replay, trace_to_json
from tvm_sparse.target.resolve import resolve_target

TARGET = resolve_target('{"kind":"llvm","num-cores":1}')
SPEC = ConvSpec(1, 8, 12, 12, 8, 3, 3, padding=(1, 1, 1, 1))
WEIGHT = np.where(np.random.default_rng(0).random(SPEC.weight_shape) < 0.2, 1.5, 0).astype(np.float32)
PATTERN = SparsityPattern.of(WEIGHT)
# One of its decisions is a choice, another a list of tiles.
SPACE = find_space("folded_cpu", SPEC, PATTERN, TARGET)
NAMES = ("folded_cpu", "csr_cpu", "dense_cpu")


def own_trace(each=SPACE):
    return trace_to_json(each.scheduled(each.apply).trace)


def damaged(change, each=SPACE):
    found = copy.deepcopy(own_trace(each))
    change(found)
    return found


def first_decision(kind, value):
    """A change that gives the first decision of a kind of instruction another value."""

    def change(found):
        decision = next(decision for decision in found[1] if found[0][decision[0]][0] == kind)
        decision[1] = value

    return change


@pytest.fixture
def vetting():
    with Vetting() as vetting:
        yield vetting


@pytest.mark.parametrize("name", NAMES)
def test_a_schedule_s_own_trace_needs_no_other_process(vetting, name):
    each = find_space(name, SPEC, PATTERN, TARGET)
    found = own_trace(each)
    vetting.check(each, SPEC, PATTERN, TARGET, found)
    vetting.check(each, SPEC, PATTERN, TARGET, [[*found[0], trace.POSTPROC], found[1]])
    assert vetting._worker._channel is None


@pytest.mark.parametrize("name", ["folded_cpu", "generated_cpu"])
def test_proposals_of_a_search_are_accepted(vetting, name):
    each = find_space(name, SPEC, PATTERN, TARGET)
    for found in SpaceSearch(each, TARGET, SharedModel(0), 1, trials=1, batch=1).propose():
        vetting.check(each, SPEC, PATTERN, TARGET, found)
    assert (vetting._worker._channel is None) == (name == "folded_cpu")


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (None, "not a list of instructions"),
        ([], "not a list of instructions"),
        ([[], {}], "not a list of instructions"),
        ([[], [], []], "not a list of instructions"),
        ([["Unroll"], []], "instruction 0 is none"),
        ([[["Unroll", [], []]], []], "instruction 0 is none"),
        ([[["Unroll", [], [], [3]]], []], "instruction 0 is none"),
        ([[[None, [], [], []]], []], "instruction 0 is none"),
        ([[], [3]], "a decision is none"),
        ([[], [[0, 1]]], "not those of its sampling instructions"),
        (damaged(lambda found: found[1].pop()), "not those of its sampling instructions"),
        (damaged(lambda found: found[1].append(found[1][0])), "not those of its sampling instructions"),
        (damaged(lambda found: found[1][0].__setitem__(0, None)), "not those of its sampling instructions"),
    ],
)
def test_what_has_not_the_form_of_a_trace_is_not_given_to_tvm(vetting, found, reason):
    with pytest.raises(BuildError, match=reason):
        vetting.check(SPACE, SPEC, PATTERN, TARGET, found)
    with pytest.raises(BuildError, match=reason):
        replay(SPACE, found)
    assert vetting._worker._channel is None


def test_what_tvm_crashes_on_crashes_another_process(vetting):
    for change in (
        first_decision("SampleCategorical", None),
        lambda found: found[0][0].__setitem__(1, [None]),
        first_decision("SampleCategorical", "x"),
    ):
        with pytest.raises(BuildError, match=r"the trace cannot be used: .*(SIGSEGV|SIGABRT|does not fit)"):
            vetting.check(SPACE, SPEC, PATTERN, TARGET, damaged(change))
    vetting.check(SPACE, SPEC, PATTERN, TARGET, own_trace())


def test_invalid_decisions_are_not_the_schedule_s_own():
    tiles = next(value for index, value in own_trace()[1] if own_trace()[0][index][0] == "SamplePerfectTile")
    assert trace.is_own(SPACE, damaged(first_decision("SamplePerfectTile", tiles[::-1])))
    for value in (-1, 10**6, 2**40, 1.5, True, None, "x", []):
        assert not trace.is_own(SPACE, damaged(first_decision("SampleCategorical", value)))
    for value in ([], None, tiles[1:], [2 * tiles[0], *tiles[1:]], [0 for _ in tiles], [-1 for _ in tiles], [1.0] * 3):
        assert not trace.is_own(SPACE, damaged(first_decision("SamplePerfectTile", value)))


def test_damaged_traces_never_reach_tvm_here():
    """Random damage: what is replayed in this process is replayed without harm, or this test ends."""
    rng = random.Random(0)
    sound = 0
    for name in NAMES:
        each = find_space(name, SPEC, PATTERN, TARGET)
        for _ in range(50):
            found = damaged(lambda found: damage_list(rng.choice(found), rng), each)
            if not trace.problem(found) and trace.is_own(each, found):
                with contextlib.suppress(BuildError):
                    replay(each, found)
                    sound += 1
    assert sound >= 2


def test_a_trace_that_looks_at_what_is_not_there_is_refused(vetting):
    own, decisions = own_trace()
    for look in (
        ["GetLoops", ["b0", "b0"], [], ["x"]],
        ["GetLoops", ["b99"], [], []],
        ["GetSBlock", [], ["x", "y"], []],
    ):
        with pytest.raises(BuildError, match="does not fit"):
            vetting.check(SPACE, SPEC, PATTERN, TARGET, [[*own, trace.POSTPROC, look], decisions])
