"""Kernels with weights as data on random convolutions and tilings, emulated, against the float64 reference."""

import random

import numpy as np
import pytest
from data_emulator import run
from parameters import sampled
from random_convolutions import Case, random_case
from tvm.s_tir import Schedule
from tvm.target import Target

from tvm_sparse.conv import reference
from tvm_sparse.conv.dtypes import BFLOAT16, FLOAT16, FLOAT32
from tvm_sparse.conv.random_weights import normal_weight
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.errors import BuildError
from tvm_sparse.schedules import data_cuda
from tvm_sparse.schedules.lookup import find_space, make_kernel, spaces_of
from tvm_sparse.scheduling.cuda.data.packing import dealt
from tvm_sparse.scheduling.cuda.data.tiling import Staging
from tvm_sparse.scheduling.cuda.library.map_size import is_grouped
from tvm_sparse.scheduling.kernel import apply_decisions

TARGET = Target({"kind": "cuda", "arch": "sm_90"})
# Whole networks' layers cut small: maps of 14x14 and 7x7, strides, one of the rows that are no multiple of 16 bytes.
LAYERS = [
    ConvSpec(1, 16, 14, 14, 32, 3, 3, padding=(1, 1, 1, 1), bias=True, relu=True),
    ConvSpec(2, 16, 28, 28, 16, 3, 3, stride=(2, 2), padding=(1, 1, 1, 1), bias=True, residual=True),
    ConvSpec(2, 32, 7, 7, 64, 1, 1, bias=True, residual=True, relu=True),
    ConvSpec(1, 32, 14, 14, 16, 1, 1, stride=(2, 2)),
    ConvSpec(1, 64, 12, 12, 16, 1, 1, residual=True),
    ConvSpec(1, 16, 9, 9, 16, 3, 3, padding=(2, 2, 2, 2), dilation=(2, 2), groups=2, bias=True),
]


def _error(case: Case, tiling, weights) -> float:
    arguments = reference.random_arguments(case.spec, case.seed, case.integers)
    return case.error(arguments, run(tiling, weights, arguments))


def _check(case: Case, seed: int) -> str:
    """Error of a random tiling of `case`; its staging."""
    space = data_cuda.named(case.spec, SparsityPattern.of(case.weight), TARGET, "")
    tilings = [tiling for _, tiling in space.ranked]
    # First how the input is staged: of most convolutions one way has far fewer tilings.
    rng = random.Random(seed)
    staging = rng.choice(sorted({each.staging for each in tilings}))
    tiling = rng.choice([each for each in tilings if each.staging is staging])
    decisions = {name: choice.to_json(getattr(tiling, name)) for name, choice in space.choices.items()}
    (weights,) = space.packed(case.weight, decisions)
    assert _error(case, tiling, weights) <= 1, f"{tiling}, {case!r}"
    return f"{tiling.staging.name}, {'cluster' if tiling.parts > 1 else 'block'}"


@pytest.mark.parametrize("dtype", sampled([FLOAT32, FLOAT16, BFLOAT16], [FLOAT32, BFLOAT16]))
def test_random_convolutions_match_the_reference(dtype):
    met = set()
    for seed in range(100 if dtype == FLOAT32 else 24):
        case = random_case(random.Random(seed).choice).stored_in(dtype)
        if spaces_of(case.spec, SparsityPattern.of(case.weight), TARGET, ["data_cuda"])[0]:
            met.add(_check(case, seed))
    assert met >= {"PLANES, block", "PLANES, cluster", "ROWS, block", "ROWS, cluster"}


@pytest.mark.parametrize("spec", LAYERS, ids=lambda spec: spec.key)
def test_layers_match_the_reference(spec):
    rng = np.random.default_rng(1)
    weight = (rng.integers(-4, 5, spec.weight_shape) * (rng.random(spec.weight_shape) < 0.2)).astype(np.float32)
    met = {_check(Case(spec, weight, seed, True), seed) for seed in range(12)}
    assert is_grouped(spec) or "ROWS, cluster" in met or "RUN, cluster" in met


def test_the_relu_keeps_nan():
    spec = LAYERS[0]
    weight, arguments = normal_weight(spec, 0.2, 0), reference.random_arguments(spec, 1)
    arguments["bias"][5] = np.nan
    space = data_cuda.named(spec, SparsityPattern.of(weight), TARGET, "")
    for parts in (1, 2):
        tiling = next(each for _, each in space.ranked if each.parts == parts)
        names = space.choices.items()
        (weights,) = space.packed(weight, {name: choice.to_json(getattr(tiling, name)) for name, choice in names})
        y = run(tiling, weights, arguments)
        assert np.isnan(y[:, 5]).all() and np.isnan(y).sum() == y[:, 5].size


def test_a_filter_that_has_most_non_zeros_does_not_make_one_block_slow():
    counts = np.arange(64)
    channels = dealt(counts, 2, 8)
    assert sorted(channels[:32]) == list(range(32)) and sorted(channels[32:]) == list(range(32, 64))
    sums = counts[channels].reshape(-1, 8).sum(axis=1)
    assert sums[:4].max() - sums[:4].min() <= 4
    assert sums[4:].max() - sums[4:].min() <= 4


def test_one_function_serves_every_weight_of_a_shape():
    spec = LAYERS[0]
    rng = np.random.default_rng(2)
    weights = [(rng.random(spec.weight_shape) < density).astype(np.float32) for density in (0.1, 0.5)]
    decisions = data_cuda.spaces(spec, SparsityPattern.of(weights[1]), TARGET)[0].starts()[0]
    one, other = (make_kernel("data_cuda", spec, weight, TARGET, decisions) for weight in weights)
    assert one.func.script() == other.func.script()
    assert one.constants[0].shape[0] == other.constants[0].shape[0]
    assert one.constants[0].shape[1] < other.constants[0].shape[1]


def test_decisions_that_do_not_fit_together_are_refused():
    spec = LAYERS[0]
    weight = np.ones(spec.weight_shape, np.float32)
    space = find_space("data_cuda", spec, SparsityPattern.of(weight), TARGET)
    decisions = {**space.starts()[0], "filters": 4, "parts": 8}
    with pytest.raises(BuildError, match="do not fit together: filters or channels do not divide"):
        apply_decisions(space, weight, decisions)


def test_too_many_non_zeros_for_shared_memory_are_refused():
    spec = ConvSpec(1, 512, 14, 14, 128, 3, 3, padding=(1, 1, 1, 1))
    sparse = np.zeros(spec.weight_shape, np.float32)
    sparse[0, 0, 0, 0] = 1
    space = find_space("data_cuda", spec, SparsityPattern.of(sparse), TARGET)
    with pytest.raises(BuildError, match="exceed shared memory"):
        apply_decisions(space, np.ones(spec.weight_shape, np.float32), space.starts()[0])


def test_gpus_without_clusters_are_told():
    weight = np.ones(LAYERS[0].weight_shape, np.float32)
    _, reasons = spaces_of(LAYERS[0], SparsityPattern.of(weight), Target({"kind": "cuda", "arch": "sm_86"}))
    assert "has no clusters" in reasons["data_cuda"]


def test_metaschedule_does_not_drop_decisions():
    spec = LAYERS[0]
    space = data_cuda.spaces(spec, SparsityPattern.of(np.ones(spec.weight_shape, np.float32)), TARGET)[0]
    schedule = Schedule(space.func, debug_mask="none")
    space.scheduled(space.starts()[3]).trace.simplified(True).apply_to_schedule(schedule, False)
    assert space.decisions_of(schedule) == space.starts()[3]


def test_names_of_stagings_are_those_of_logs():
    assert [each.name.lower() for each in Staging] == ["planes", "rows", "run"]
