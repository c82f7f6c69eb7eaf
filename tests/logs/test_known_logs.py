"""Logs that nobody names: the working directory's, the user's, the shipped ones; and records of near machines."""

import os
from dataclasses import replace

import pytest
from factories import SPEC, make_record, make_weight

from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.logs import known_logs, log_file
from tvm_sparse.logs.tuning_log import TuningLog
from tvm_sparse.schedules.lookup import find_space
from tvm_sparse.target.fingerprint import fingerprint_of
from tvm_sparse.target.resolve import resolve_target

TARGET = resolve_target("llvm")
CUDA = resolve_target('{"kind":"cuda","arch":"sm_90"}')
HERE = fingerprint_of(TARGET)
PATTERN = SparsityPattern.of(make_weight())


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("TVM_SPARSE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


def test_nothing_is_made_by_looking(home):
    log = known_logs.known_log(TARGET)
    assert not home.exists()
    assert log.path == home / "logs" / f"llvm-{HERE['arch']}.jsonl"


@pytest.fixture(scope="module")
def every():
    """All records that are shipped."""
    return [record for path in known_logs.shipped_folder().rglob("*.jsonl*") for record in log_file.parsed(path)]


@pytest.mark.parametrize("target", [TARGET, CUDA], ids=["llvm", "cuda"])
def test_logs_of_machines_of_its_kind_are_read(target, every):
    """All that are shipped, by their folders' names."""
    found = {record.to_line() for record in known_logs.known_log(target).records}
    assert found == {each.to_line() for each in every if each.fingerprint["kind"] == target.kind.name}


def test_decisions_of_every_shipped_record_are_among_those_of_its_space(every):
    """Else a tuned layer falls to another kernel; what kernels they make is for ``stress/hash_kernels.py``."""
    # Traces of MetaSchedule have no names.
    records = [each for each in every if each.family.is_compiled and isinstance(each.chosen, dict)]
    assert len(records) > 1_000
    spaces = {}
    for each in records:
        key = (str(each.target), each.schedule, each.spec)
        if key not in spaces:
            spaces[key] = find_space(each.schedule, each.spec, each.pattern, resolve_target(each.target))
        choices, where = spaces[key].choices, f"{each.schedule} {each.spec.key}"
        fits = {name: choice.from_json(each.chosen.get(name)) is not None for name, choice in choices.items()}
        assert all(fits.values()) and fits.keys() == each.chosen.keys(), f"{where}: {fits}"


def test_the_first_that_knows_a_layer_is_named(home):
    record = make_record(fingerprint=HERE)
    TuningLog("tuning.jsonl").append(record)
    log = known_logs.known_log(TARGET)
    assert known_logs.origin(log.path_of(log.lookup(SPEC, PATTERN, HERE).record)) == "log tuning.jsonl"
    TuningLog(log.path).append(replace(record, times_us=(1.0,)))
    log.refresh()
    found = log.lookup(SPEC, PATTERN, HERE).record
    assert found.times_us == (1.0,)
    assert known_logs.origin(log.path_of(found)) == f"your log llvm-{HERE['arch']}"
    shipped = next(each for each in log.records if each.fingerprint["arch"] == "x86-64-v4")
    assert known_logs.origin(log.path_of(shipped)).startswith("shipped log x86-64-v4/")


def test_shipped_logs_are_read_once(monkeypatch):
    log, parsed = known_logs.known_log(TARGET), []
    monkeypatch.setattr(known_logs.TuningLog, "_add", lambda _log, record, path: parsed.append(path))
    monkeypatch.setattr("tvm_sparse.logs.log_file.parse", lambda path: pytest.fail(f"{path} was read again"))
    log.refresh()
    assert parsed


def test_files_are_parsed_again_once_they_have_changed(home, monkeypatch):
    other, parsed, lines = home / "logs" / "other.jsonl", [], log_file._lines
    records = [make_record(fingerprint=HERE, seed=seed) for seed in (1, 2)]
    TuningLog(other).append(records[0])
    assert records[0] in known_logs.known_log(TARGET).records
    monkeypatch.setattr(log_file, "_lines", lambda path, data: parsed.append(path) or lines(path, data))
    assert records[0] in known_logs.known_log(TARGET).records and not parsed
    with other.open("a") as file:
        file.write(records[1].to_line() + "\n")
    found = known_logs.known_log(TARGET).records
    assert all(record in found for record in records)
    assert parsed == [other]
    # Another file of the same size, at the same time.
    state = other.stat()
    other.write_bytes(other.read_bytes().replace(b"12.5", b"12.6"))
    os.utime(other, ns=(state.st_atime_ns, state.st_mtime_ns))
    known_logs.known_log(TARGET)
    assert parsed == [other, other]


@pytest.mark.parametrize(
    ("changes", "is_near"),
    [
        ({"arch": "x86-64-v3"}, False),
        ({"threads": "99"}, True),
        ({"tvm": "0.1"}, True),
        ({"kind": "cuda", "arch": "sm_90"}, False),
        ({"arch": "no such processor"}, False),
    ],
)
def test_near_machines_have_the_same_vectors(tmp_path, changes, is_near):
    here = {**HERE, "arch": "x86-64-v4"}
    log = TuningLog(tmp_path / "log.jsonl")
    log.append(make_record(fingerprint={**here, **changes}))
    assert log.lookup(SPEC, PATTERN, here) is None
    assert (log.near(SPEC, PATTERN, here) is not None) == is_near


def test_another_gpu_is_near(tmp_path):
    log = TuningLog(tmp_path / "log.jsonl")
    log.append(make_record(fingerprint={**HERE, "kind": "cuda", "arch": "sm_80", "threads": "1"}))
    assert log.near(SPEC, PATTERN, {**HERE, "kind": "cuda", "arch": "sm_90", "threads": "1"}) is not None


def test_kernels_that_somebody_has_to_ask_for_are_not_near(tmp_path):
    """Sums in float16 are less exact than what else serves the layer."""
    here = {**HERE, "kind": "cuda", "arch": "sm_90", "threads": "1"}
    log = TuningLog(tmp_path / "log.jsonl")
    spec = replace(SPEC, dtype="float16")
    for schedule in ("folded_half_cuda", "folded_cuda"):
        assert log.near(replace(spec, relu=not spec.relu), PATTERN, here) is None
        log.append(replace(make_record(fingerprint=here), spec=spec, schedule=schedule))
    assert log.near(replace(spec, relu=not spec.relu), PATTERN, here).record.schedule == "folded_cuda"


def test_records_of_this_machine_are_not_near(tmp_path):
    log = TuningLog(tmp_path / "log.jsonl")
    log.append(make_record(fingerprint=HERE))
    assert log.lookup(SPEC, PATTERN, HERE) is not None and log.near(SPEC, PATTERN, HERE) is None
