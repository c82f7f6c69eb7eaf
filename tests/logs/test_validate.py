"""Verifying a log again: kernels that are right, wrong, of another machine, or of a damaged record."""

import json
from dataclasses import replace

import numpy as np
import pytest

from tvm_sparse.autotune.search.evolutionary_search import SharedModel, SpaceSearch
from tvm_sparse.cli import main
from tvm_sparse.conv.random_weights import weight_like
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.logs import validate
from tvm_sparse.logs.merge import write
from tvm_sparse.logs.record import TuningRecord
from tvm_sparse.measure.measurer import Measurer
from tvm_sparse.schedules.lookup import find_space
from tvm_sparse.target.fingerprint import fingerprint_of
from tvm_sparse.target.resolve import resolve_target, target_json

TARGET = resolve_target('{"kind":"llvm","num-cores":1}')
SPEC = ConvSpec(1, 8, 9, 9, 16, 3, 3, padding=(1, 1, 1, 1), bias=True, relu=True)
WEIGHT = np.where(np.random.default_rng(0).random(SPEC.weight_shape) < 0.2, 1.5, 0).astype(np.float32)


def record(schedule="folded_cpu", target=TARGET, **changes):
    """An ok record of the schedule's own decisions."""
    pattern = SparsityPattern.of(WEIGHT)
    each = find_space(schedule, SPEC, pattern, target)
    values = {
        "schedule": each.name,
        "decisions": each.starts()[0],
        "status": "ok",
        "times_us": (2.0,),
        "error": 0.5,
        "target": target_json(target),
        "fingerprint": fingerprint_of(target),
        "seed": 0,
    }
    return TuningRecord(spec=SPEC, **({"pattern": pattern} | values | changes))


def results(records, weights=None):
    return [(verdict.result, verdict.note) for verdict in validate.validate(records, weights)]


def test_kernels_are_built_and_compared_again():
    sparse, dense = record(), record("dense_cpu", pattern=SparsityPattern.of(2 * WEIGHT))
    found = list(validate.validate([sparse, dense], {(SPEC, sparse.pattern.value_digest): WEIGHT}))
    assert [verdict.result for verdict in found] == ["verified", "verified"]
    assert all(0 < verdict.error <= 1 for verdict in found)
    density = f"{sparse.pattern.density:.3g}"
    assert [verdict.note for verdict in found] == ["with its own weight", f"with a random weight of density {density}"]
    assert len({verdict.kernel for verdict in found}) == 2
    assert validate.summary(found)["verified"] == 2


def test_a_kernel_that_is_wrong_now_fails(monkeypatch):
    build = Measurer._build

    def build_with_another_weight(self, candidate, library):
        with np.load(self._arrays) as arrays:
            changed = dict(arrays)
        np.savez(self._arrays, **{**changed, "weight": changed["weight"] * 2})
        outcome = build(self, candidate, library)
        np.savez(self._arrays, **changed)
        return outcome

    monkeypatch.setattr(Measurer, "_build", build_with_another_weight)
    ((result, note),) = results([record()])
    assert result == "failed"
    assert "wrong: the result differs from the float64 reference by" in note


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"tvm": "0.26.0"}, "made with TVM 0.26.0, this is"),
        ({"kind": "cuda", "arch": "sm_90"}, "fingerprint: kind is not that of the target, found cuda; allowed: llvm"),
        ({"arch": "pentium"}, "fingerprint: arch is not that of the target, found pentium"),
        ({"threads": "3"}, "fingerprint: threads is not that of the target, found 3; allowed: 1"),
    ],
)
def test_a_machine_that_is_not_this_one(change, sentence):
    sound = record()
    ((result, note),) = results([replace(sound, fingerprint=sound.fingerprint | change)])
    assert result == ("structure" if "tvm" in change else "failed")
    assert sentence in note


def test_another_machine_s_records_are_checked_for_structure_only():
    sound = record("folded_cuda", resolve_target({"kind": "cuda", "arch": "sm_50"}))
    (verdict,) = validate.validate([sound])
    assert verdict.result == "structure"
    assert verdict.note.startswith("not run: ")
    assert len(verdict.kernel) == 64


def test_damaged_records_fail(small_populations):
    sound = record()
    generated = find_space("generated_cpu", SPEC, sound.pattern, TARGET)
    (trace, *_) = SpaceSearch(generated, TARGET, SharedModel(0), 1, trials=1, batch=1).propose()
    crash = [trace[0], [[index, None] for index, _ in trace[1]]]
    cases = {
        "killed by SIGSEGV": replace(sound, schedule="generated_cpu", decisions={}, trace=crash),
        "decision filters is missing": replace(sound, decisions={"nonsense": 3}),
        "takes decisions by name": replace(sound, decisions={}, trace=trace),
        "unknown for target llvm": replace(sound, schedule="nonsense"),
        "unknown target kind": replace(sound, target={"kind": "nonsense"}),
    }
    for (reason, _), (result, note) in zip(cases.items(), results(cases.values()), strict=True):
        assert (result, reason in note) == ("failed", True), note


def masks():
    rng = np.random.default_rng(1)
    shape = (32, 16, 3, 3)
    unstructured = rng.random(shape) < 0.1
    dead = rng.random(shape) < 0.3
    dead[rng.permutation(32)[:7]] = False
    dead[:, rng.permutation(16)[:5]] = False
    vectors = (rng.random((4, 16, 3, 3)) < 0.2).repeat(8, axis=0)
    two_of_four = rng.random((32, 4, 4, 3, 3)).argsort(axis=2) < 2
    return {
        "unstructured": unstructured,
        "dead": dead,
        "vectors": vectors,
        "2:4": two_of_four.reshape(shape),
        "dense": np.ones(shape, bool),
        "empty": np.zeros(shape, bool),
        "one": np.arange(np.prod(shape)).reshape(shape) == 77,
    }


@pytest.mark.parametrize("name", masks())
def test_a_weight_like_another_has_its_structure(name):
    mask = masks()[name]
    spec = ConvSpec(1, 16, 6, 6, 32, 3, 3)
    pattern = SparsityPattern.of(mask.astype(np.float32))
    weight = weight_like(spec, pattern)
    found = SparsityPattern.of(weight)
    assert (weight.dtype, found.structure, found.nnz) == (np.float32, pattern.structure, pattern.nnz)
    assert (found.dead_filters, found.dead_channels) == (pattern.dead_filters, pattern.dead_channels)
    assert np.array_equal(weight, weight_like(spec, pattern))


def test_the_command_line_verifies(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write("log.jsonl", [record(), record(decisions={"nonsense": 1}, times_us=(9.0,))])
    assert main.main(["logs", "validate", "log.jsonl", "--all", "--json"]) == 5
    found = json.loads(capsys.readouterr().out)
    assert [found[key] for key in ("verified", "structure", "failed")] == [1, 0, 1]
    assert "decision filters is missing" in found["records"][0]["note"]
