"""Which schedules serve a convolution and why others do not, kernels from decisions, and the search over a space."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from parameters import sampled
from random_convolutions import run
from tvm.s_tir import Schedule

from tvm_sparse.autotune.search import evolutionary_search
from tvm_sparse.autotune.search.evolutionary_search import SharedModel, SpaceSearch
from tvm_sparse.autotune.search.metaschedule_context import MutateCategorical
from tvm_sparse.conv import reference
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.errors import BuildError, UsageError
from tvm_sparse.logs.record import decisions_key
from tvm_sparse.schedules.lookup import family_of, find_space, make_kernel, schedule_names, spaces_of
from tvm_sparse.scheduling.space import HandMadeSpace, divisors, nearest
from tvm_sparse.target.resolve import resolve_target

TARGET = resolve_target('{"kind":"llvm","num-cores":2}')
SPEC = ConvSpec(1, 8, 12, 12, 12, 3, 3, padding=(1, 1, 1, 1), relu=True)
WEIGHT = np.where(np.random.default_rng(0).random(SPEC.weight_shape) < 0.2, 1.5, 0).astype(np.float32)
PATTERN = SparsityPattern.of(WEIGHT)
SCHEDULES = ("folded_cpu", "csr_cpu", "dense_cpu")


def search(name, seed=1, batch=4):
    each = find_space(name, SPEC, PATTERN, TARGET)
    return SpaceSearch(each, TARGET, SharedModel(seed), seed, trials=40, batch=batch)


@pytest.mark.parametrize("target", ["llvm", "cuda"])
def test_every_schedule_has_spaces_or_a_sentence(target):
    target = resolve_target(target)
    found, reasons = spaces_of(SPEC, PATTERN, target)
    assert {each.schedule for each in found} | set(reasons) == set(schedule_names(target))
    refusals = {name: family_of(name).can_serve(SPEC, PATTERN, target) for name in schedule_names(target)}
    assert {name: reason for name, reason in refusals.items() if reason} == reasons
    assert len({each.name for each in found}) == len(found)
    assert any(each.schedule.startswith("dense") for each in found)


def test_reasons_are_sentences_with_the_number_and_the_limit():
    weight = np.ones((512, 512, 3, 3), np.float32)
    spec = ConvSpec(1, 512, 7, 7, 512, 3, 3)
    found, reasons = spaces_of(spec, SparsityPattern.of(weight), TARGET)
    assert {each.schedule for each in found} == {"csr_cpu", "winograd_cpu", "dense_cpu"}
    assert reasons.pop("linear_cpu") == "25 pixels an output, at most 1; it is for linear layers"
    assert reasons.pop("byte_cpu") == "its input and weight are not known to be integers of eight bits"
    assert reasons.pop("vector_cpu").startswith("the zeros are dense; it is for filters that share their zeros")
    assert set(reasons) == {"folded_cpu", "generated_cpu"}
    for reason in reasons.values():
        assert str(weight.size) in reason
        assert "at most" in reason
    with pytest.raises(UsageError, match=r"does not serve convolution .* at most"):
        make_kernel("folded_cpu", spec, weight, TARGET)


def test_unknown_names_are_refused_with_what_exists():
    with pytest.raises(UsageError, match=r"unknown for target llvm; allowed: folded_cpu, "):
        find_space("folded_cuda", SPEC, PATTERN, TARGET)
    with pytest.raises(UsageError, match="it has no variant 'rows5'"):
        find_space("folded_cpu:rows5", SPEC, PATTERN, TARGET)


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_name_without_a_variant_is_the_first_space(name):
    first = spaces_of(SPEC, PATTERN, TARGET, [name])[0][0]
    assert find_space(name, SPEC, PATTERN, TARGET).name == first.name
    assert find_space(first.name, SPEC, PATTERN, TARGET).name == first.name


@pytest.mark.parametrize("target", ["llvm", "cuda"])
def test_no_decision_is_lost_where_metaschedule_simplifies(target):
    """It drops samples that nothing depends on, as it mutates a candidate."""
    vectors = WEIGHT[::4].repeat(4, axis=0)
    # More channels than a CPU's cache holds at a time, so that there is more to decide.
    wide = np.zeros((8, 160, 3, 3), np.float32)
    wide[::2] = np.random.default_rng(0).random(wide[::2].shape) < 0.1
    cases = [(SPEC, WEIGHT), (SPEC, vectors), (ConvSpec(1, 160, 12, 12, 8, 3, 3, padding=(1, 1, 1, 1)), wide)]
    met = set()
    for spec, weight in cases:
        for each in spaces_of(spec, SparsityPattern.of(weight), resolve_target(target))[0]:
            if isinstance(each, HandMadeSpace):
                sch, again = each.scheduled(), Schedule(each.func)
                sch.trace.simplified(remove_postproc=True).apply_to_schedule(again, remove_postproc=False)
                assert each.decisions_of(again) == each.decisions_of(sch)
                met |= {(each.schedule, name) for name in each.choices}
    assert {("csr_cpu", "channels"), ("vector_cpu", "filters")} <= met or target == "cuda"
    assert len(met) > 10


@pytest.mark.parametrize("name", SCHEDULES)
def test_decisions_survive_json_and_give_the_default_again(name):
    decisions = json.loads(json.dumps(find_space(name, SPEC, PATTERN, TARGET).starts()[0]))
    plain, again = (make_kernel(name, SPEC, WEIGHT, TARGET, each) for each in (None, decisions))
    assert plain.func.script() == again.func.script()
    arguments = reference.random_arguments(SPEC, 0)
    assert np.array_equal(*(run(kernel, SPEC, arguments, TARGET) for kernel in (plain, again)))


def test_decisions_have_names():
    assert find_space("folded_cpu", SPEC, PATTERN, TARGET).starts()[0].keys() == {
        "filters",
        "row_groups",
        "vectors",
        "channels",
    }


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"filters": 99}, "decision filters does not fit, found 99; allowed: one of 1, 2, 3, 4, 6, 12"),
        ({"filters": "8"}, "decision filters does not fit, found '8'; allowed: one of"),
        ({"filters": 4.0}, "decision filters does not fit, found 4.0"),
        ({"row_groups": True}, "decision row_groups does not fit, found True"),
        ({"vectors": [1, 1, 99]}, "decision vectors does not fit, found .*; allowed: 3 integers whose product is"),
        ({"vectors": 4}, "decision vectors does not fit"),
        ({"channels": None}, "decision channels does not fit, found None"),
        ({"pipeline_stages": 3}, "unknown decision, found pipeline_stages; allowed: filters, row_groups, vectors"),
    ],
    ids=str,
)
def test_decisions_that_do_not_fit_are_named(change, sentence):
    decisions = {**find_space("folded_cpu", SPEC, PATTERN, TARGET).starts()[0], **change}
    with pytest.raises(
        BuildError, match=f"^schedule folded_cpu.*: {re.escape(sentence).replace(re.escape('.*'), '.*')}"
    ):
        make_kernel("folded_cpu", SPEC, WEIGHT, TARGET, decisions)


def test_a_missing_decision_is_named():
    decisions = dict(find_space("folded_cpu", SPEC, PATTERN, TARGET).starts()[0])
    del decisions["channels"]
    with pytest.raises(BuildError, match="decision channels is missing; allowed: one of 1, 2, 4, 8"):
        make_kernel("folded_cpu", SPEC, WEIGHT, TARGET, decisions)
    with pytest.raises(BuildError, match="takes decisions by name, found list"):
        make_kernel("folded_cpu", SPEC, WEIGHT, TARGET, [[], []])


def test_a_decision_changes_the_kernel():
    default = find_space("folded_cpu", SPEC, PATTERN, TARGET).starts()[0]
    (other,) = {3, 12} - {default["filters"]} - {12}
    kernels = [make_kernel("folded_cpu", SPEC, WEIGHT, TARGET, {**default, "filters": n}) for n in (2, other)]
    assert kernels[0].func.script() != kernels[1].func.script()


def test_kernels_are_marked_as_scheduled_and_folded_ones_take_no_weight():
    for name in SCHEDULES:
        kernel = make_kernel(name, SPEC, WEIGHT, TARGET)
        assert kernel.func.attrs["tirx.is_scheduled"]
        assert len(kernel.func.params) == 2 + len(kernel.constants)
    assert make_kernel("folded_cpu", SPEC, WEIGHT, TARGET).constants == ()
    by_rows = next(each for each in spaces_of(SPEC, PATTERN, TARGET, ["dense_cpu"])[0] if ":rows" in each.name)
    assert np.array_equal(make_kernel(by_rows.name, SPEC, WEIGHT, TARGET).constants[0], WEIGHT)


def proposals(name, seed, rounds):
    """Decisions that a search proposes when every candidate takes 100 us, round by round."""
    found, each = [], search(name, seed)
    for _ in range(rounds):
        proposed = each.propose()
        if proposed is None:
            break
        found += map(decisions_key, proposed)
        each.tell([100.0] * len(proposed))
    return found


@pytest.mark.parametrize(("name", "rounds"), sampled([("folded_cpu", 3), ("generated_cpu", 1)], [("folded_cpu", 3)]))
def test_a_seed_decides_the_proposals(name, rounds, monkeypatch):
    # Proposing takes the time, of a population of any size as the seed says.
    monkeypatch.setattr(evolutionary_search, "POPULATION", 6)
    np.random.seed(1)
    first = proposals(name, 3, rounds)
    np.random.seed(2)
    assert proposals(name, 3, rounds) == first
    assert set(proposals(name, 4, rounds)) != set(first)
    assert len(set(first)) == len(first) >= 4 * rounds - 2


def test_proposing_leaves_numpy_s_generator_alone(small_populations):
    each = search("folded_cpu")
    np.random.seed(7)
    expected = np.random.random()
    np.random.seed(7)
    each.propose()
    assert np.random.random() == expected


def test_a_small_space_is_exhausted(small_populations):
    spec = ConvSpec(1, 1, 1, 1, 1, 1, 1)
    weight = np.ones(spec.weight_shape, np.float32)
    only = find_space("folded_cpu", spec, SparsityPattern.of(weight), TARGET)
    each = SpaceSearch(only, TARGET, SharedModel(0), 1, trials=8, batch=4)
    for _ in range(10):
        proposed = each.propose()
        if proposed is None:
            return
        each.tell([1.0] * len(proposed))
    pytest.fail("the search goes on for ever")


def test_a_mutation_changes_one_decision():
    each = find_space("folded_cpu", SPEC, PATTERN, TARGET)
    schedule = each.scheduled()
    before = each.decisions_of(schedule)
    mutate, changed = MutateCategorical(0), set()
    for _ in range(20):
        mutated = Schedule(each.func)
        mutate.apply(schedule.trace).apply_to_schedule(mutated, remove_postproc=True)
        after = each.decisions_of(mutated)
        (name,) = [name for name in before if before[name] != after[name]]
        changed.add(name)
    assert {"filters", "channels"} <= changed <= {"filters", "row_groups", "channels"}


def test_a_mutation_of_a_space_without_choices_is_none():
    spec = ConvSpec(1, 1, 1, 1, 1, 1, 1)
    only = find_space("folded_cpu", spec, SparsityPattern.of(np.ones((1, 1, 1, 1), np.float32)), TARGET)
    assert MutateCategorical(0).apply(only.scheduled().trace) is None


def test_searching_does_not_import_tensor_intrinsics():
    """They cost 10 to 50 s."""
    code = (
        "import sys\n"
        "from tvm_sparse.frontend.optional_imports import without_torch\n"
        "with without_torch():\n"
        "    import test_space\n"
        "    test_space.evolutionary_search.POPULATION = 4\n"
        "    test_space.search('folded_cpu').propose()\n"
        "print('tvm.s_tir.tensor_intrin' in sys.modules)"
    )
    path = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_helpers_of_schedules():
    assert divisors(12) == [1, 2, 3, 4, 6, 12]
    assert divisors(12, 5) == [1, 2, 3, 4]
    assert [nearest([1, 2, 4, 8], wish) for wish in (0, 3, 5, 100)] == [1, 4, 4, 8]
