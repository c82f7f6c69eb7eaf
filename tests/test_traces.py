"""A damaged trace is refused before TVM sees it: TVM would end the process."""

import copy
import json
import lzma
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tvm import s_tir

from tvm_sparse import environment, space
from tvm_sparse.conv import ConvSpec
from tvm_sparse.errors import BuildError, TvmSparseError
from tvm_sparse.pattern import SparsityPattern
from tvm_sparse.traces import FORMS, check_trace

ROOT = Path(__file__).parents[1]
TARGETS = [environment.resolve_target('{"kind":"llvm","num-cores":1}'), environment.resolve_target("cuda")]
SPEC = ConvSpec(1, 8, 12, 12, 16, 3, 3, padding=(1, 1, 1, 1), relu=True)
WEIGHT = (np.random.default_rng(0).random(SPEC.weight_shape) < 0.3).astype(np.float32)


def spaces_with_traces():
    """Every space of every schedule that has default decisions, with these as a trace."""
    for target in TARGETS:
        for each in space.spaces(SPEC, SparsityPattern.of(WEIGHT), target)[0]:
            if each.apply is not None:
                schedule = s_tir.Schedule(each.func, debug_mask="none")
                each.apply(schedule)
                yield each, space.trace_to_json(schedule.trace)


def test_the_traces_of_all_schedules_pass():
    names = set()
    for each, trace in spaces_with_traces():
        space.replay(each, trace)
        names.add(each.schedule)
    assert len(names) >= 6


@pytest.mark.parametrize("log", sorted((ROOT / "tuning_logs").rglob("*.jsonl.xz")), ids=lambda path: path.stem)
def test_the_traces_of_shared_logs_pass(log):
    traces = [json.loads(line).get("trace") for line in lzma.decompress(log.read_bytes()).splitlines()]
    layouts = {value for trace in filter(None, traces) for i in trace[0] if i[0] == "TransformLayout" for value in i[1]}
    for trace in filter(None, traces):
        check_trace(trace, layouts)
    assert any(traces)


GOOD = [
    [
        ["GetSBlock", [], ["out", "main"], ["b0"]],
        ["GetLoops", ["b0"], [], ["l1", "l2"]],
        ["SampleCategorical", [], [[2, 0], [0.5, 0.5]], ["v3"]],
        ["Split", ["l1", "None", "v3"], [True, False], ["l4", "l5"]],
    ],
    [[2, 0]],
]


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ((), {}, "not a list of instructions"),
        ((), [[]], "not a list of instructions"),
        ((0, 0), "GetSBlock", "instruction 0: it is not a name with inputs"),
        ((0, 0, 0), "os.system", "instruction 0: 'os.system' is unknown"),
        ((0, 0, 2), ["out"], "GetSBlock has other attributes"),
        ((0, 0, 3), [], "GetSBlock has other outputs"),
        ((0, 0, 3), ["x"], "GetSBlock has other outputs"),
        ((0, 1, 1), ["b7"], "b7 is used before it is made"),
        ((0, 1, 1), ["l1"], "l1 is used before it is made"),
        ((0, 3, 1, 0), "b0", "Split has other inputs"),
        ((0, 3, 1, 2), 2**40, "Split has other inputs"),
        ((0, 3, 1, 2), 0, "Split has a factor below 1"),
        ((0, 3, 1, 2), "None", "several to be inferred"),
        ((0, 3, 3), ["l4", "l5", "l6"], "Split has other factors than loops"),
        ((0, 2, 2, 0), [2, "2"], "SampleCategorical has other attributes"),
        ((0, 2, 2, 1), [1.0], "other probabilities than candidates"),
        ((1, 0, 1), 1, "Split has a factor below 1"),
        ((1, 0, 1), 2, "SampleCategorical cannot have decided for 2"),
        ((1, 0, 1), [2], "cannot have decided"),
        ((1, 0, 1), None, "a decision is not a position and a value"),
        ((1,), [], "Split has a factor below 1"),
        ((1, 0, 0), 1, "GetLoops cannot have decided for 0"),
        ((1, 0, 0), 9, "decision for position 9"),
        ((1,), [[2, 0], [2, 0]], "none or taken"),
        ((0, 0), ["TransformLayout", [], [0, 0, None, 1], []], "TransformLayout has other inputs"),
    ],
)
def test_damage_is_named(path, value, message):
    check_trace(GOOD)
    trace = copy.deepcopy(GOOD)
    if path:
        place = trace
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
    else:
        trace = value
    with pytest.raises(ValueError, match=message):
        check_trace(trace)


def test_layouts_are_those_of_the_schedule():
    found = [(s, t) for s, t in spaces_with_traces() if "TransformLayout" in str(t)]
    assert found, "no schedule transforms a layout any more: its rule can go"
    for each, trace in found:
        space.replay(each, trace)
        changed = json.loads(json.dumps(trace).replace("root_index", "boot_index"))
        with pytest.raises(BuildError, match="TransformLayout has a layout that the schedule does not use"):
            space.replay(each, changed)


def test_forms_are_instructions_of_tvm():
    for name in FORMS:
        s_tir.schedule.InstructionKind.get(name)


def mutated(choose, trace):
    """`trace` with one value, anywhere in it, replaced or removed."""
    trace = copy.deepcopy(trace)
    node = trace
    while node:
        key = choose(range(len(node)))
        if isinstance(node[key], list) and node[key] and choose(range(10)):
            node = node[key]
            continue
        kinds = ["Fuse", "Split", "Tensorize", "TransformLayout", "CacheRead", "RFactor", "GetProducers"]
        values = [None, -1, 0, 3, 2**40, 1e308, True, "x", "", "{}", [], {}, "l3", "b0", "v4", choose(kinds)]
        node[key : key + 1] = [choose(values)] if choose(range(8)) else []
        break
    return trace


def replay_mutations(seed, count):
    """Each damaged trace is refused, or replayed; the process lives."""
    traces = list(spaces_with_traces())
    for index in range(count):
        choose = random.Random(f"{seed} {index}").choice
        each, trace = choose(traces)
        for _ in range(choose((1, 1, 2, 4))):
            trace = mutated(choose, trace)
        print(index, flush=True)
        try:
            space.apply_trace(each, WEIGHT, trace)
        except TvmSparseError as error:
            assert "\n" not in str(error)


def test_no_mutation_ends_the_process():
    code = "import sys; sys.path.insert(0, sys.argv[1]); import test_traces; test_traces.replay_mutations(0, 300)"
    command = [sys.executable, "-c", code, str(Path(__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, f"mutation {done.stdout.split()[-1]}: {done.stderr[-1000:]}"
