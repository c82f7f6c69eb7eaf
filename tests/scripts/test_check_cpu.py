"""The script that checks CPU schedules: it counts what it checks and finds what is wrong, crashes included."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import check_cpu
import pytest
from random_convolutions import Case


def test_a_short_run_reports_every_schedule(tmp_path):
    report = tmp_path / "report.json"
    command = [sys.executable, check_cpu.__file__, "--cases", "2", "--seed", "3", "-o", report]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    table = json.loads(Path(report).read_text())["schedules"]
    assert set(table) == {"folded_cpu", "csr_cpu", "dense_cpu"}
    for row in table.values():
        assert (row["kernels"], row["failures"]) == (2, [])
        assert 0 <= row["worst"] <= 1


def test_a_stopped_run_continues(tmp_path, monkeypatch, capsys):
    """Of three chunks two are done and a third was being written: only that one is checked again."""
    asked = []

    def fake(seed, first, count, schedules):
        asked.append(first)
        return [{"schedule": "csr_cpu", "index": i, "worst": (i + 1) / 1000} for i in range(first, first + count)]

    monkeypatch.setattr(check_cpu, "check_in_child", fake)
    done, report = tmp_path / "done.jsonl", tmp_path / "report.json"
    words = ["check_cpu.py", "--workers", "1", "--schedules", "csr_cpu", "--done", done, "-o", report]
    monkeypatch.setattr(sys, "argv", [*map(str, words), "--cases", "120"])
    assert check_cpu.main() == 0
    assert asked == [0, 50, 100]
    first = json.loads(report.read_text())["schedules"]
    assert first == {"csr_cpu": {"kernels": 120, "worst": 0.12, "not_served": 0, "failures": []}}
    lines = done.read_bytes().splitlines(keepends=True)
    done.write_bytes(b"".join(lines[:-1]) + lines[-1][:20])
    assert check_cpu.main() == 0
    assert asked == [0, 50, 100, 100]
    assert json.loads(report.read_text())["schedules"] == first
    monkeypatch.setattr(sys, "argv", [*map(str, words), "--cases", "120", "--seed", "9"])
    with pytest.raises(SystemExit, match="belongs to another run"):
        check_cpu.main()


def test_wrong_results_are_failures(monkeypatch):
    monkeypatch.setattr(Case, "worst", lambda *_: 3.0)
    (result,) = check_cpu.check_case(0, 0, ["dense_cpu"])
    assert result["cause"] == "3 times the error bound"
    row = check_cpu.summary([result])["dense_cpu"]
    assert (row["kernels"], row["worst"], row["failures"]) == (1, 0.0, [result])


@pytest.mark.parametrize("error", [float("inf"), float("nan")])
def test_undefined_results_are_failures(monkeypatch, error):
    monkeypatch.setattr(Case, "worst", lambda *_: error)
    (result,) = check_cpu.check_case(0, 1, ["dense_cpu"])
    assert check_cpu.summary([result])["dense_cpu"]["failures"] == [result]


def test_errors_are_failures(monkeypatch):
    def fail(*_):
        raise RuntimeError("cannot be built")

    monkeypatch.setattr(Case, "worst", fail)
    (result,) = check_cpu.check_case(0, 0, ["dense_cpu"])
    assert result["cause"] == "RuntimeError: cannot be built"


def test_a_crash_is_narrowed_down_to_its_case_and_schedule(monkeypatch):
    """Case 13 crashes in csr_cpu; all others are well."""

    def child(command, **_):
        value = {name: int(command[command.index(name) + 1]) for name in ("--first", "--cases")}
        schedules = command[command.index("--schedules") + 1 :]
        cases = range(value["--first"], value["--first"] + value["--cases"])
        if 13 in cases and "csr_cpu" in schedules:
            return SimpleNamespace(returncode=-signal.SIGSEGV, stdout="", stderr="Segfault encountered")
        results = [{"schedule": name, "index": i, "worst": 0.5} for i in cases for name in schedules]
        return SimpleNamespace(returncode=0, stdout="\n".join(map(json.dumps, results)), stderr="")

    monkeypatch.setattr(subprocess, "run", child)
    table = check_cpu.summary(check_cpu.check_in_child(0, 10, 20, ["folded_cpu", "csr_cpu"]))
    assert [row["kernels"] for row in table.values()] == [20, 20]
    assert table["folded_cpu"]["failures"] == []
    (failure,) = table["csr_cpu"]["failures"]
    assert failure["index"] == 13
    assert "code -11: Segfault encountered" in failure["cause"]
