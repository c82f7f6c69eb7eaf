"""CUDA kernels of MetaSchedule's generated space, folded afterwards: their source, and their numerics emulated."""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from cuda_emulator import build_source, kernels, run_emulated
from parameters import random_seeds
from random_convolutions import Case, random_case

from tvm_sparse.autotune.search import evolutionary_search
from tvm_sparse.autotune.search.evolutionary_search import SharedModel, SpaceSearch
from tvm_sparse.autotune.search.random_search import RandomSearch
from tvm_sparse.conv import reference
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.errors import BuildError
from tvm_sparse.measure.safe_replay import SafeReplay
from tvm_sparse.schedules.lookup import find_space, spaces_of
from tvm_sparse.scheduling.cuda.generated_tiles import TileRules
from tvm_sparse.scheduling.kernel import apply_decisions
from tvm_sparse.scheduling.space import Decisions, Space
from tvm_sparse.target.resolve import resolve_target

TARGET = resolve_target({"kind": "cuda", "arch": "sm_90"})
NAME = "generated_cuda"
# The features that random cases have to show between them.
COVERED = ("padding", "stride", "dilation", "groups", "batch", "bias", "residual", "relu")
SPEC = ConvSpec(2, 4, 16, 16, 8, 3, 3, padding=(1, 1, 1, 1), bias=True, residual=True, relu=True)
WEIGHT = np.where(np.random.default_rng(0).random(SPEC.weight_shape) < 0.2, 1, 0).astype(np.float32)
WEIGHT[WEIGHT != 0] = np.arange(2, 2 + np.count_nonzero(WEIGHT))
PATTERN = SparsityPattern.of(WEIGHT)
needs_emulator = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++ to emulate CUDA code")


@pytest.fixture
def small_population(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most of the time of a search goes to candidates that it does not propose, or has already."""
    monkeypatch.setattr(evolutionary_search, "POPULATION", 4)
    monkeypatch.setattr(evolutionary_search, "MAX_REPEATED", 5)


def space() -> Space:
    """That of `SPEC`."""
    return find_space(NAME, SPEC, PATTERN, TARGET)


def drawn(each: Space, seed: int, count: int) -> list[Decisions]:
    """Traces as a log would give them back."""
    return [json.loads(json.dumps(trace)) for trace in islice(each.draws(seed), count)]


def features_of(spec: ConvSpec) -> set[str]:
    """Those of `COVERED` that a convolution has."""
    has = {
        "padding": any(spec.padding),
        "stride": max(spec.stride) > 1,
        "dilation": max(spec.dilation) > 1,
        "groups": spec.groups > 1,
        "batch": spec.n > 1,
        **{name: getattr(spec, name) for name in ("bias", "residual", "relu")},
    }
    return {name for name, found in has.items() if found}


@needs_emulator
@random_seeds((0, 2, 3, 9), 11)
def test_random_draws_match_the_reference(seeds: Iterable[int]) -> None:
    """Every element, integers exactly: `run_emulated` leaves NaN where a kernel writes nothing."""
    checked, covered = 0, set()
    for seed in seeds:
        case = random_case(random.Random(f"generated {seed}").choice)
        found, reasons = spaces_of(case.spec, SparsityPattern.of(case.weight), TARGET, [NAME])
        assert found or "outputs of a filter, at least 32" in reasons[NAME]
        for trace in (trace for each in found for trace in drawn(each, seed, 2)):
            y = run_emulated(case, apply_decisions(found[0], case.weight, trace), TARGET)
            assert case.error(reference.random_arguments(case.spec, case.seed, case.integers), y) <= 1, case
            checked, covered = checked + 1, covered | features_of(case.spec)
    assert checked >= len(COVERED)
    assert covered == set(COVERED)


def test_weights_are_immediates() -> None:
    """Each value is there as often as a thread has pixels, no zero, and no argument but input and epilogue."""
    virtual = 0
    for trace in drawn(space(), 1, 6):
        source = kernels(build_source(apply_decisions(space(), WEIGHT, trace).func, TARGET)[0])
        found = [float.fromhex(each) for each in re.findall(r"\* (-?0x[0-9a-f.]+p[+-]\d+)f", source)]
        values, counts = np.unique(found, return_counts=True)
        np.testing.assert_array_equal(values, np.sort(WEIGHT[WEIGHT != 0]))
        assert len(set(counts)) == 1
        virtual += counts[0] > 1
        parameters = re.search(r"main_kernel\(([^)]*)\)", source).group(1)
        assert sorted(re.findall(r"\w+_ptr", parameters)) == ["bias_ptr", "out_ptr", "residual_ptr", "x_ptr"]
        assert "weight" not in source
        assert "pack_shared" in source and "__syncthreads()" in source
        assert re.search(r"float conv_local_ptr_at_0\b", source), "accumulators are registers"
    assert virtual, "no draw has several pixels a thread"


@needs_emulator
def test_virtual_threads_are_right() -> None:
    """Fewer of them than 16 are laid out one after the other by TVM, more of them as a loop."""
    case = Case(SPEC, WEIGHT, 5, integers=True)
    generated, fitting = space(), {"n": [1, 1, 1, 1, 2], "k": [2, 4, 1, 1, 1]}
    for virtual in (1, 2):
        tiles = {**fitting, "y": [1, virtual, 16 // virtual, 1, 1], "x": [1, 2, 8, 1, 1]}
        generated.rules = TileRulesOf(tiles)
        (trace,) = drawn(generated, 0, 1)
        y = run_emulated(case, apply_decisions(generated, WEIGHT, trace), TARGET)
        assert case.error(reference.random_arguments(SPEC, 5, integers=True), y) == 0


class TileRulesOf:
    """Draws always the same tiles."""

    def __init__(self, tiles: dict[str, list[int]]):
        self.tiles = tiles

    def draws(self, *_: object) -> list[dict[str, list[int]]]:
        """As `TileRules.draws`, though few."""
        return [self.tiles] * 20


def test_what_is_refused() -> None:
    """Each limit, by its sentence."""
    rules = TileRules(nnz=1000, filters_group=6)
    good = {"n": [1, 1, 1, 1, 1], "k": [1, 2, 1, 1, 2], "y": [1, 1, 8, 1, 1], "x": [1, 1, 8, 1, 1]}
    assert rules.obstacle_of(good) == ""
    for axis, tile, sentence in (
        ("n", [1, 2, 1, 2, 4], "more than 12000 multiply-adds"),
        ("k", [1, 12, 1, 6, 1], "more than 64 accumulators"),
        ("y", [8, 1, 1, 1, 1], "a block has fewer than 32 threads"),
        ("n", [1, 1, 32, 1, 1], "or more than 1024"),
        ("y", [1, 1, 4, 1, 1], ""),
        ("k", [1, 1, 1, 4, 1], "belong to several of the groups of 6"),
    ):
        found = rules.obstacle_of({**good, axis: tile})
        assert found == "" if not sentence else sentence in found
    assert "different code" in rules.obstacle_of({**good, "k": [1, 1, 2, 1, 2], "y": [1, 1, 7, 1, 1]})


def test_sentences_where_it_does_not_serve() -> None:
    """Too many non-zeros, and too few outputs."""
    large, small = ConvSpec(1, 64, 8, 8, 64, 3, 3, padding=(1, 1, 1, 1)), ConvSpec(1, 4, 5, 5, 4, 1, 1)
    for spec, sentence in ((large, "36864 non-zeros .* at most 12000"), (small, "25 outputs .* at least 32")):
        found, reasons = spaces_of(spec, SparsityPattern.of(np.ones(spec.weight_shape, np.float32)), TARGET, [NAME])
        assert not found and re.search(sentence, reasons[NAME])


def test_searches_propose_what_fits(small_population: None) -> None:
    """The first batch is drawn, what follows evolves from it, and the random search draws too."""
    search, seen = SpaceSearch(space(), TARGET, SharedModel(0), 1, trials=24, batch=4), set()
    for _ in range(3):
        proposed = search.propose()
        assert proposed and not any(space().obstacle_of(space().scheduled(trace)) for trace in proposed)
        search.tell([100.0] * len(proposed))
        seen |= {json.dumps(trace) for trace in proposed}
    assert len(seen) >= 10
    assert len({json.dumps(trace) for _, trace in RandomSearch([space()], TARGET, 1).propose(4)}) == 4


def test_a_search_ends_where_nothing_is_left(small_population: None) -> None:
    """A space of few tiles is exhausted."""
    spec = ConvSpec(1, 1, 1, 37, 1, 1, 1)
    weight = np.ones(spec.weight_shape, np.float32)
    only = find_space(NAME, spec, SparsityPattern.of(weight), TARGET)
    search = SpaceSearch(only, TARGET, SharedModel(0), 1, trials=40, batch=8)
    for _ in range(12):
        proposed = search.propose()
        if proposed is None:
            return
        search.tell([1.0] * len(proposed))
    pytest.fail("the search goes on for ever")


def test_a_seed_decides_the_draws() -> None:
    """And another makes others."""
    assert drawn(space(), 3, 3) == drawn(space(), 3, 3) != drawn(space(), 4, 3)


def test_traces_are_replayed_in_another_process() -> None:
    """A sound one is, a damaged one is a sentence."""
    (trace,) = drawn(space(), 2, 1)
    with SafeReplay() as replay:
        replay.scheduled(space(), SPEC, PATTERN, TARGET, trace)
        trace[0][0][0] = "Missing"
        with pytest.raises(BuildError, match="the trace cannot be used"):
            replay.scheduled(space(), SPEC, PATTERN, TARGET, trace)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc on PATH to compile CUDA code")
def test_nvcc_compiles_the_source(tmp_path: Path) -> None:
    """Without spilled registers."""
    for trace in drawn(space(), 3, 2):
        (tmp_path / "kernel.cu").write_text(build_source(apply_decisions(space(), WEIGHT, trace).func, TARGET)[0])
        command = ["nvcc", "-arch=sm_90", "-cubin", "-O3", "-Xptxas", "-v", "-o", "kernel.cubin", "kernel.cu"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert set(re.findall(r"(\d+) bytes spill", done.stderr)) == {"0"}
