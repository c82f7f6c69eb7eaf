"""MetaSchedule databases: what goes out and comes back, what is lost, and lines that TVM crashes on."""

import base64
import json
import subprocess
import sys
from dataclasses import replace

import pytest
from test_validate import SPEC, TARGET, WEIGHT, record

from tvm_sparse import cli, exchange, space
from tvm_sparse.errors import LogError
from tvm_sparse.log import TuningLog, write
from tvm_sparse.metaschedule_db import RECORDS, WORKLOADS
from tvm_sparse.pattern import SparsityPattern
from tvm_sparse.search import SharedModel, SpaceSearch

# What a database has no place for.
LOST = {"dense_times_us": (), "dense_schedule": "", "error": None, "seed": 0, "timestamp": "2000-01-01T00:00:00+00:00"}


def records():
    """Three sparse records, two of one candidate on different machines, a dense one and a failed one."""
    sparse = record(dense_times_us=(9.0,), dense_schedule="dense_cpu", seed=5)
    other = replace(sparse, fingerprint=sparse.fingerprint | {"device": "other"}, times_us=(3.0, 3.25))
    failed = record("csr_cpu", status="timeout", cause="run took longer than 60 s", times_us=(), error=None)
    return [sparse, other, record("dense_cpu", times_us=(7.5,)), failed]


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    """The folder of an exported database of `records`; to be left as it is."""
    folder = tmp_path_factory.mktemp("export") / "database"
    assert exchange.export_database(records(), folder) == []
    return folder


@pytest.fixture
def damaged(database, tmp_path):
    """Writes a database with other lines; gives its folder."""

    def write_lines(change_records=list, change_workloads=list):
        for name, change in ((RECORDS, change_records), (WORKLOADS, change_workloads)):
            lines = change((database / name).read_text().splitlines())
            (tmp_path / name).write_bytes(b"\n".join(each if type(each) is bytes else each.encode() for each in lines))
        return tmp_path

    return write_lines


def plain(records):
    """Records in one order, without what is lost; TVM writes True as 1, which is equal."""
    return sorted((replace(each, **LOST) for each in records), key=lambda each: (each.schedule, each.times_us))


NO_RELU = replace(SPEC, relu=False)


def own_trace(spec):
    each = space.find("folded_cpu", spec, SparsityPattern.of(WEIGHT), TARGET)
    schedule = space.s_tir.Schedule(each.func, debug_mask="none")
    each.apply(schedule)
    return space.trace_to_json(schedule.trace)


def test_what_a_database_can_hold_comes_back(database):
    back, rejected = exchange.import_database(database)
    assert rejected == []
    *ok, failed = sorted(back, key=lambda record: record.status)
    assert plain(ok) == plain(records()[:3])
    assert all(each.error is None and each.dense_times_us == () for each in back)
    assert (failed.status, failed.cause, failed.decisions) == ("run_failed", exchange.FAILED, records()[3].decisions)


def test_importing_twice_gives_the_same_lines(database):
    first, again = (exchange.import_database(database)[0] for _ in range(2))
    assert [each.to_line() for each in first] == [each.to_line() for each in again]


def test_tvm_itself_reads_what_was_exported(database):
    code = (
        "import sys, types; sys.modules['torch'] = None\n"
        "sys.modules['tvm.s_tir.tensor_intrin'] = types.ModuleType('x')\n"
        "from tvm.s_tir import Schedule, meta_schedule as ms\n"
        f"for record in ms.database.JSONDatabase(work_dir={str(database)!r}).get_all_tuning_records():\n"
        "    schedule = Schedule(record.workload.mod)\n"
        "    record.trace.apply_to_schedule(schedule, remove_postproc=False)\n"
        "    print(min(float(value) for value in record.run_secs))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert sorted(map(float, done.stdout.split())) == [2e-6, 3e-6, 7.5e-6, 1e10]


def test_generated_candidates_come_back_too(tmp_path):
    pattern = SparsityPattern.of(WEIGHT)
    each = space.find("generated_cpu", SPEC, pattern, TARGET)
    (trace,) = SpaceSearch(each, TARGET, SharedModel(0), 1, trials=1, batch=1).propose()
    made = replace(record(), trace=trace, decisions=space.decisions(trace), schedule="generated_cpu")
    assert exchange.export_database([made], tmp_path / "database") == []
    (back,), _ = exchange.import_database(tmp_path / "database")
    assert back.decisions == made.decisions


BAD_LINES = {
    "not JSON": ["", "garbage", "\0" * 8, b"\xff\xfe", '[0, [["tr', "[0, [NaN]", "[" * 5000],
    "is not \\[workload": ["{}", '{"a":1}', "[]", "[0]", '["0", []]', "3", "null"],
    "no such workload": ["[-1, []]", "[99, []]"],
    "cannot be used": ["[0, []]", "[0, [null, null, null, null]]"],
}


def test_bad_lines_cost_themselves(database, damaged):
    bad = [(line, reason) for reason, lines in BAD_LINES.items() for line in lines]
    good = len((database / RECORDS).read_text().splitlines())
    back, rejected = exchange.import_database(damaged(lambda lines: [line for line, _ in bad] + lines))
    assert len(back) == good
    assert [line.line_number for line in rejected] == list(range(1, len(bad) + 1))
    for line, (_, reason) in zip(rejected, bad, strict=True):
        assert line.path.name == RECORDS
        with pytest.raises(LogError, match=reason):
            raise LogError(line.reason)


@pytest.mark.parametrize("seconds", [[-1.0], [0.0], [], "x", [None]], ids=str)
def test_impossible_times_are_refused(damaged, seconds):
    def change(lines):
        workload, (trace, _, target, arguments) = json.loads(lines[0])
        return [json.dumps([workload, [trace, seconds, target, arguments]]), *lines[1:]]

    back, rejected = exchange.import_database(damaged(change))
    assert (len(back), len(rejected)) == (3, 1)


def replaced(text, old, new):
    """A workload's text with one thing replaced by another of the same length."""
    content = base64.b64decode(text)
    assert old in content and len(old) == len(new)
    return base64.b64encode(content.replace(old, new)).decode()


def workload(change):
    """A change of the first workload's decoded text, which is base64 of a length and JSON."""

    def changed(lines):
        key, text = json.loads(lines[0])
        return [json.dumps([key, change(text)]), *lines[1:]]

    return changed


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "",
        lambda text: base64.b64encode(
            base64.b64decode(text).replace(b"tvm_sparse.origin", b"tvm_sparse.stolen")
        ).decode(),
        lambda text: base64.b64encode(base64.b64decode(text).replace(b"ir.Type", b"ir.Typo")).decode(),
    ],
    ids=["half", "empty", "foreign", "unknown type"],
)
def test_bad_workloads_cost_their_records(damaged, change):
    back, rejected = exchange.import_database(damaged(change_workloads=workload(change)))
    assert (len(back), len(rejected)) == (3, 1)


def test_a_function_that_is_no_longer_the_schedule_s_is_refused(tmp_path, monkeypatch):
    """As after a change of a schedule: the origin says one convolution, the function is another's."""
    other = replace(record(trace=own_trace(NO_RELU)), spec=NO_RELU)
    exchange.export_database([other], tmp_path / "database")
    path = tmp_path / "database" / WORKLOADS
    key, text = json.loads(path.read_text())
    changed = replaced(text, b'\\"relu\\": false', b'\\"relu\\": true ')
    path.write_text(json.dumps([key, changed]) + "\n")
    back, (rejected,) = exchange.import_database(tmp_path / "database")
    assert back == []
    assert "another tvm-sparse made it" in rejected.reason


def test_what_a_database_cannot_hold_is_left_out(tmp_path):
    without_trace, sound = record(trace=None, decisions={}), record()
    ((left_out, reason),) = exchange.export_database([without_trace, sound], tmp_path / "database")
    assert left_out == without_trace
    assert "the trace is damaged" in reason
    assert len(exchange.import_database(tmp_path / "database")[0]) == 1


def test_folders_that_cannot_be_used(tmp_path):
    with pytest.raises(LogError, match="exists already"):
        exchange.export_database([], tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(LogError, match="cannot be made"):
        exchange.export_database([], tmp_path / "file" / "database")
    with pytest.raises(LogError, match="no such file"):
        exchange.import_database(tmp_path)


def test_the_command_line_goes_both_ways(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write("log.jsonl", records())
    assert cli.main(["logs", "export", "log.jsonl", "-o", "database", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kept"] == 4
    assert cli.main(["logs", "import", "database", "-o", "back.jsonl"]) == 0
    assert "written: back.jsonl, 4 records" in capsys.readouterr().out
    assert {each.error for each in TuningLog("back.jsonl").records} == {None}
    assert cli.main(["logs", "import", "nothing", "-o", "more.jsonl"]) == 3
    (tmp_path / "database" / RECORDS).write_text("garbage\n")
    assert cli.main(["logs", "import", "database", "-o", "more.jsonl"]) == 3
    assert "line 1: skipped" in capsys.readouterr().out


def test_the_command_line_verifies(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    slower = record(times_us=(9.0,), seed=3, status="ok")
    write("log.jsonl", [record(), slower])
    assert cli.main(["logs", "validate", "log.jsonl", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [found[key] for key in ("verified", "structure", "failed")] == [1, 0, 0]
    write("bad.jsonl", [slower, record(decisions={})])
    assert cli.main(["logs", "validate", "bad.jsonl", "--all"]) == 5
    assert "1 verified, 0 by structure only, 1 failed" in capsys.readouterr().out
