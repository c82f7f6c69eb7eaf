"""The script that checks schedules: it counts what it checks and finds what is wrong, crashes included."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import check_kernels
import cpu_jobs
import gpu_jobs
import kernel_jobs
import pytest
from kernel_jobs import summary
from random_convolutions import Case


def test_a_short_run_reports_every_schedule(tmp_path):
    report = tmp_path / "report.json"
    command = [sys.executable, check_kernels.__file__, "--cases", "2", "--seed", "3", "-o", report]
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

    def fake(seed, schedules, first, count):
        asked.append(first)
        return [{"schedule": "csr_cpu", "index": i, "worst": (i + 1) / 1000} for i in range(first, first + count)]

    monkeypatch.setattr(cpu_jobs, "check_in_child", fake)
    done, report = tmp_path / "done.jsonl", tmp_path / "report.json"
    words = ["check_kernels.py", "--workers", "1", "--schedules", "csr_cpu", "--done", done, "-o", report]
    monkeypatch.setattr(sys, "argv", [*map(str, words), "--cases", "120"])
    assert check_kernels.main() == 0
    assert asked == [0, 50, 100]
    first = json.loads(report.read_text())["schedules"]
    assert first == {"csr_cpu": {"kernels": 120, "worst": 0.12, "not_served": 0, "failures": []}}
    lines = done.read_bytes().splitlines(keepends=True)
    done.write_bytes(b"".join(lines[:-1]) + lines[-1][:20])
    assert check_kernels.main() == 0
    assert asked == [0, 50, 100, 100]
    assert json.loads(report.read_text())["schedules"] == first
    monkeypatch.setattr(sys, "argv", [*map(str, words), "--cases", "120", "--seed", "9"])
    with pytest.raises(SystemExit, match="belongs to another run"):
        check_kernels.main()


def test_isolated_processes_check_kernels_too():
    """As on a GPU: built in one process, run in another; a large batch and a schedule that does not apply as well."""
    jobs = [*gpu_jobs.random_jobs([0, 1], 3, ["csr_cpu"]), kernel_jobs.Job("csr_cuda", 3)]
    wanted = {"kernels": 2, "not_served": 0, "failures": []}
    table = summary(gpu_jobs.check(jobs, 1, "llvm"))
    assert wanted.items() <= table["csr_cpu"].items() and 0 <= table["csr_cpu"]["worst"] <= 1
    assert [job.case().spec.n for job in jobs][:2] == [gpu_jobs.MANY, jobs[1].case().spec.n]
    assert table["csr_cuda"] == {"kernels": 0, "worst": 0.0, "not_served": 1, "failures": []}


def test_wrong_results_are_failures(monkeypatch):
    monkeypatch.setattr(Case, "worst", lambda *_: 3.0)
    (result,) = cpu_jobs.check_case(0, 0, ["dense_cpu"])
    assert result["cause"] == "3 times the error bound"
    row = summary([result])["dense_cpu"]
    assert (row["kernels"], row["worst"], row["failures"]) == (1, 0.0, [result])


@pytest.mark.parametrize("error", [float("inf"), float("nan")])
def test_undefined_results_are_failures(monkeypatch, error):
    monkeypatch.setattr(Case, "worst", lambda *_: error)
    (result,) = cpu_jobs.check_case(0, 1, ["dense_cpu"])
    assert summary([result])["dense_cpu"]["failures"] == [result]


def test_errors_are_failures(monkeypatch):
    def fail(*_):
        raise RuntimeError("cannot be built")

    monkeypatch.setattr(Case, "worst", fail)
    (result,) = cpu_jobs.check_case(0, 0, ["dense_cpu"])
    assert result["cause"] == "RuntimeError: cannot be built"


def test_a_crash_is_narrowed_down_to_its_case_and_schedule(monkeypatch):
    """Case 13 crashes in csr_cpu; all others are well."""

    def child(command, **_):
        _seed, first, count, *schedules = command[2:]
        cases = range(int(first), int(first) + int(count))
        if 13 in cases and "csr_cpu" in schedules:
            return SimpleNamespace(returncode=-signal.SIGSEGV, stdout="", stderr="Segfault encountered")
        results = [{"schedule": name, "index": i, "worst": 0.5} for i in cases for name in schedules]
        return SimpleNamespace(returncode=0, stdout="\n".join(map(json.dumps, results)), stderr="")

    monkeypatch.setattr(subprocess, "run", child)
    table = summary(cpu_jobs.check_in_child(0, ["folded_cpu", "csr_cpu"], 10, 20))
    assert [row["kernels"] for row in table.values()] == [20, 20]
    assert table["folded_cpu"]["failures"] == []
    (failure,) = table["csr_cpu"]["failures"]
    assert failure["index"] == 13
    assert "code -11: Segfault encountered" in failure["cause"]
