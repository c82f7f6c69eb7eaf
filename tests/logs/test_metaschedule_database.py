"""MetaSchedule databases: what goes out and comes back, what is lost, and lines that TVM crashes on."""

import base64
import json
import subprocess
import sys
from dataclasses import replace

import pytest
from test_validate import SPEC, TARGET, WEIGHT, record

from tvm_sparse.cli import main
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.errors import LogError
from tvm_sparse.logs import metaschedule_database
from tvm_sparse.logs.merge import write
from tvm_sparse.logs.metaschedule_worker import RECORDS, WORKLOADS
from tvm_sparse.logs.tuning_log import TuningLog
from tvm_sparse.measure.worker import Worker
from tvm_sparse.schedules.lookup import find_space

# What a database has no place for.
LOST = {"dense_times_us": (), "baseline": "", "error": None, "seed": 0, "timestamp": "2000-01-01T00:00:00+00:00"}


def records():
    """Three sparse records, two of one candidate on different machines, a dense one and a failed one."""
    sparse = record(dense_times_us=(9.0,), baseline="dense_cpu", seed=5)
    other = replace(sparse, fingerprint=sparse.fingerprint | {"device": "other"}, times_us=(3.0, 3.25))
    failed = record("csr_cpu", status="timeout", cause="run took longer than 60 s", times_us=(), error=None)
    return [sparse, other, record("dense_cpu", times_us=(7.5,)), failed]


@pytest.fixture(scope="module")
def lend():
    """A class that takes the place of `Worker`: all have one process, whose start takes longer than what it does."""
    worker = Worker({"TVM_NUM_THREADS": "1"}, command=metaschedule_database.COMMAND)

    class Lent:
        def __init__(self, *_, **__):
            self.ask = worker.ask

        def stop(self):
            pass

    yield Lent
    worker.stop()


@pytest.fixture
def one_process(lend, monkeypatch):
    """Databases are written and read by one process."""
    monkeypatch.setattr(metaschedule_database, "Worker", lend)


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    """The folder of an exported database of `records`; to be left as it is."""
    folder = tmp_path_factory.mktemp("export") / "database"
    assert metaschedule_database.export_database(records(), folder) == []
    return folder


def read_with(database, folder, more_records=(), more_workloads=()):
    """What is imported from a copy of a database, in `folder`, with more lines."""
    for name, more in ((RECORDS, more_records), (WORKLOADS, more_workloads)):
        lines = [(database / name).read_bytes().rstrip(b"\n")]
        lines += [each if type(each) is bytes else each.encode() for each in more]
        (folder / name).write_bytes(b"\n".join(lines))
    return metaschedule_database.import_database(folder)


def first_line(database, name):
    return json.loads((database / name).read_text().splitlines()[0])


def plain(records):
    """Records in one order, without what is lost; TVM writes True as 1, which is equal."""
    return sorted((replace(each, **LOST) for each in records), key=lambda each: (each.schedule, each.times_us))


NO_RELU = replace(SPEC, relu=False)


def own_decisions(spec):
    return find_space("folded_cpu", spec, SparsityPattern.of(WEIGHT), TARGET).starts()[0]


def test_what_a_database_can_hold_comes_back(one_process, database):
    back, rejected = metaschedule_database.import_database(database)
    assert rejected == []
    *ok, failed = sorted(back, key=lambda record: record.status)
    assert plain(ok) == plain(records()[:3])
    assert all(each.error is None and each.dense_times_us == () for each in back)
    assert (failed.status, failed.cause, failed.decisions) == (
        "run_failed",
        metaschedule_database.FAILED,
        records()[3].decisions,
    )
    # Again it gives the same lines, so that merging logs made from one database changes nothing.
    assert [each.to_line() for each in metaschedule_database.import_database(database)[0]] == [
        each.to_line() for each in back
    ]


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


BAD_LINES = {
    "not JSON": ["", "garbage", "\0" * 8, b"\xff\xfe", '[0, [["tr', "[0, [NaN]", "[" * 5000],
    "is not [workload": ["{}", '{"a":1}', "[]", "[0]", '["0", []]', "3", "null"],
    "no such workload": ["[-1, []]", "[99, []]"],
    "cannot be used": ["[0, []]", "[0, [null, null, null, null]]"],
}


def test_bad_lines_cost_themselves(one_process, database, tmp_path):
    bad = [(line, reason) for reason, lines in BAD_LINES.items() for line in lines]
    back, rejected = read_with(database, tmp_path, [line for line, _ in bad])
    assert len(back) == 4
    assert [line.line_number for line in rejected] == list(range(5, 5 + len(bad)))
    for line, (_, reason) in zip(rejected, bad, strict=True):
        assert line.path.name == RECORDS
        assert reason in line.reason


def test_impossible_times_are_refused(one_process, database, tmp_path):
    workload, (trace, _, target, arguments) = first_line(database, RECORDS)
    times = [-1.0], [0.0], [], "x", [None]
    bad = [json.dumps([workload, [trace, seconds, target, arguments]]) for seconds in times]
    back, rejected = read_with(database, tmp_path, bad)
    assert (len(back), len(rejected)) == (4, 5)


def replaced(text, old, new):
    """A workload's text with one thing replaced by another of the same length."""
    content = base64.b64decode(text)
    assert old in content and len(old) == len(new)
    return base64.b64encode(content.replace(old, new)).decode()


def test_bad_workloads_cost_their_records(one_process, database, tmp_path):
    """Half of one, none, one of another program, one of unknown types; the first record is repeated for each."""
    key, text = first_line(database, WORKLOADS)
    foreign = replaced(text, b"tvm_sparse.origin", b"tvm_sparse.stolen")
    texts = text[: len(text) // 2], "", foreign, replaced(text, b"ir.Type", b"ir.Typo")
    count = len((database / WORKLOADS).read_text().splitlines())
    _, record = first_line(database, RECORDS)
    records = [json.dumps([count + index, record]) for index in range(len(texts))]
    back, rejected = read_with(database, tmp_path, records, [json.dumps([key, each]) for each in texts])
    assert (len(back), len(rejected)) == (4, 4)
    assert "no convolution that tvm-sparse exported" in rejected[2].reason


def test_a_function_that_is_no_longer_the_schedule_s_is_refused(one_process, tmp_path, monkeypatch):
    """As after a change of a schedule: the origin says one convolution, the function is another's."""
    other = replace(record(decisions=own_decisions(NO_RELU)), spec=NO_RELU)
    metaschedule_database.export_database([other], tmp_path / "database")
    path = tmp_path / "database" / WORKLOADS
    key, text = json.loads(path.read_text())
    changed = replaced(text, b'\\"relu\\": false', b'\\"relu\\": true ')
    path.write_text(json.dumps([key, changed]) + "\n")
    back, (rejected,) = metaschedule_database.import_database(tmp_path / "database")
    assert back == []
    assert "another tvm-sparse made it" in rejected.reason


def test_what_a_database_cannot_hold_is_left_out(one_process, tmp_path):
    misfit, sound = record(decisions={"filters": 1}), record()
    ((left_out, reason),) = metaschedule_database.export_database([misfit, sound], tmp_path / "database")
    assert left_out == misfit
    assert "decision row_groups is missing" in reason
    assert (tmp_path / "database" / RECORDS).read_text().count("\n") == 1


def test_folders_that_cannot_be_used(tmp_path):
    with pytest.raises(LogError, match="exists already"):
        metaschedule_database.export_database([], tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(LogError, match="cannot be made"):
        metaschedule_database.export_database([], tmp_path / "file" / "database")
    with pytest.raises(LogError, match="no such file"):
        metaschedule_database.import_database(tmp_path)


def test_the_command_line_goes_both_ways(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write("log.jsonl", records())
    assert main.main(["logs", "export", "log.jsonl", "-o", "database", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kept"] == 4
    assert main.main(["logs", "import", "database", "-o", "back.jsonl"]) == 0
    assert "written: back.jsonl, 4 records" in capsys.readouterr().out
    assert {each.error for each in TuningLog("back.jsonl").records} == {None}
    assert main.main(["logs", "import", "nothing", "-o", "more.jsonl"]) == 3
    (tmp_path / "database" / RECORDS).write_text("garbage\n")
    assert main.main(["logs", "import", "database", "-o", "more.jsonl"]) == 3
    assert "line 1: skipped" in capsys.readouterr().out


def test_the_command_line_verifies(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write("log.jsonl", [record(), record(decisions={"nonsense": 1}, times_us=(9.0,))])
    assert main.main(["logs", "validate", "log.jsonl", "--all", "--json"]) == 5
    found = json.loads(capsys.readouterr().out)
    assert [found[key] for key in ("verified", "structure", "failed")] == [1, 0, 1]
    assert "decision filters is missing" in found["records"][0]["note"]
