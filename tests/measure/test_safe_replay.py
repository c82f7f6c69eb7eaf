"""Damaged traces: TVM crashes on many, so another process finds them out. Damaged decisions are refused by name."""

import copy
import functools
import json
import random

import numpy as np
import pytest
from damage import damage_list

from tvm_sparse.autotune.search.evolutionary_search import SharedModel, SpaceSearch
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.errors import BuildError
from tvm_sparse.measure.safe_replay import SafeReplay
from tvm_sparse.schedules.lookup import find_space
from tvm_sparse.target.resolve import resolve_target

pytestmark = pytest.mark.usefixtures("small_populations")
TARGET = resolve_target('{"kind":"llvm","num-cores":1}')
SPEC = ConvSpec(1, 8, 12, 12, 8, 3, 3, padding=(1, 1, 1, 1))
WEIGHT = np.where(np.random.default_rng(0).random(SPEC.weight_shape) < 0.2, 1.5, 0).astype(np.float32)
PATTERN = SparsityPattern.of(WEIGHT)
# MetaSchedule generates it, so its records hold traces.
SPACE = find_space("generated_cpu", SPEC, PATTERN, TARGET)


@functools.cache
def sound_trace():
    return SpaceSearch(SPACE, TARGET, SharedModel(0), 1, trials=1, batch=1).propose()[0]


def damaged(change):
    found = copy.deepcopy(sound_trace())
    change(found)
    return found


def first_decision(kind, value):
    """A change that gives the first decision of a kind of instruction another value."""

    def change(found):
        decision = next(decision for decision in found[1] if found[0][decision[0]][0] == kind)
        decision[1] = value

    return change


@pytest.fixture
def replay():
    with SafeReplay() as replay:
        yield replay


@pytest.mark.parametrize("name", ["folded_cpu", "csr_cpu"])
def test_decisions_by_name_need_no_other_process(replay, name):
    each = find_space(name, SPEC, PATTERN, TARGET)
    model = SharedModel(0, each.has_features)
    for decisions in [*each.starts(), *SpaceSearch(each, TARGET, model, 1, trials=1, batch=1).propose()]:
        schedule = replay.scheduled(each, SPEC, PATTERN, TARGET, decisions)
        assert each.decisions_of(schedule) == decisions
    with pytest.raises(BuildError, match=r"decision (filters|pixels|blocks|channels) is missing"):
        replay.scheduled(each, SPEC, PATTERN, TARGET, {})
    assert replay._worker._channel is None


def test_a_search_s_trace_is_replayed_in_another_process_first(replay):
    replay.scheduled(SPACE, SPEC, PATTERN, TARGET, sound_trace())
    assert replay._worker._channel is not None


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        ({}, "not a list of instructions"),
        ([], "not a list of instructions"),
        ([[], {}], "not a list of instructions"),
        ([[], [], []], "not a list of instructions"),
        ([["Unroll"], []], "instruction 0 is none"),
        ([[["Unroll", [], []]], []], "instruction 0 is none"),
        ([[["Unroll", [], [], [3]]], []], "instruction 0 is none"),
        ([[[None, [], [], []]], []], "instruction 0 is none"),
        ([[], [3]], "a decision is none"),
        ([[], [[0, 1]]], "not those of its sampling instructions"),
        (lambda found: found[1].pop(), "not those of its sampling instructions"),
        (lambda found: found[1].append(found[1][0]), "not those of its sampling instructions"),
        (lambda found: found[1][0].__setitem__(0, None), "not those of its sampling instructions"),
    ],
)
def test_what_has_not_the_form_of_a_trace_is_not_given_to_tvm(replay, found, reason):
    # A sound trace is searched for where it is needed, not by every process that collects tests.
    found = damaged(found) if callable(found) else found
    with pytest.raises(BuildError, match=reason):
        replay.scheduled(SPACE, SPEC, PATTERN, TARGET, found)
    if found is not None:
        with pytest.raises(BuildError, match=reason):
            SPACE.scheduled(found)
    assert replay._worker._channel is None


def test_what_tvm_crashes_on_crashes_another_process(replay):
    for change in (
        first_decision("SamplePerfectTile", None),
        lambda found: found[0][0].__setitem__(1, [None]),
        first_decision("SamplePerfectTile", "x"),
    ):
        with pytest.raises(BuildError, match=r"the trace cannot be used: .*(SIGSEGV|SIGABRT|does not fit)"):
            replay.scheduled(SPACE, SPEC, PATTERN, TARGET, damaged(change))
    replay.scheduled(SPACE, SPEC, PATTERN, TARGET, sound_trace())


def test_damaged_decisions_never_reach_tvm():
    """Random damage: decisions by name are refused by a sentence, or are others that fit, or this test ends."""
    rng = random.Random(0)
    sound = refused = 0
    for name in ("folded_cpu", "csr_cpu"):
        each = find_space(name, SPEC, PATTERN, TARGET)
        for _ in range(75):
            decisions = json.loads(json.dumps(each.starts()[0]))
            key = rng.choice(sorted(decisions))
            values = [decisions[key], *(decisions[other] for other in decisions)]
            damage_list(values, rng)
            decisions[key] = rng.choice([*values, -1, 10**6, 2**40, 1.5, True, None, "x", [], {}])
            try:
                each.scheduled(decisions)
                sound += 1
            except BuildError:
                refused += 1
    assert sound >= 2
    assert refused >= 50


def test_a_trace_that_looks_at_what_is_not_there_is_refused(replay):
    own, decisions = sound_trace()
    for look in (
        ["GetLoops", ["b0", "b0"], [], ["x"]],
        ["GetLoops", ["b99"], [], []],
        ["GetSBlock", [], ["x", "y"], []],
    ):
        with pytest.raises(BuildError, match="does not fit"):
            replay.scheduled(SPACE, SPEC, PATTERN, TARGET, [[*own, look], decisions])
