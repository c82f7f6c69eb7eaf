"""The script that checks schedules: it counts what it checks and finds what is wrong, crashes included."""

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import check_kernels
import kernel_jobs
import pytest
from check_kernels import summary


@pytest.mark.exhaustive
def test_a_short_run_reports_every_schedule(tmp_path):
    report = tmp_path / "report.json"
    command = [sys.executable, check_kernels.__file__, "--first", "6", "--cases", "2", "--seed", "3", "-o", report]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    table = json.loads(Path(report).read_text())["schedules"]
    assert set(table) == {"bias_cpu", "folded_cpu", "vector_cpu", "csr_cpu", "linear_cpu", "winograd_cpu", "dense_cpu"}
    for name, row in table.items():
        # Case 7 is a linear layer; those of other schedules for layers of their own are drawn anew.
        not_served = {"linear_cpu": 1}.get(name, 0)
        assert (row["kernels"], row["not_served"], row["failures"]) == (2 - not_served, not_served, [])
        assert 0 <= row["worst"] <= 1


def test_a_stopped_run_continues(tmp_path, monkeypatch, capsys):
    """Of three parts two are done and a third was being written: only that one is checked again."""
    asked = []

    def fake(jobs, workers, target):
        asked.append(jobs[0].index)
        return [{"schedule": job.schedule, "index": job.index, "worst": (job.index + 1) / 1000} for job in jobs]

    monkeypatch.setattr(kernel_jobs, "check", fake)
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


def test_a_large_batch_and_a_schedule_that_does_not_apply():
    """As on a GPU: built in one process, run in another."""
    jobs = [*kernel_jobs.random_jobs([0, 1], 3, ["csr_cpu"]), kernel_jobs.Job("csr_cuda", 3)]
    wanted = {"kernels": 2, "not_served": 0, "failures": []}
    table = summary(kernel_jobs.check(jobs, 1, "llvm"))
    assert wanted.items() <= table["csr_cpu"].items() and 0 <= table["csr_cpu"]["worst"] <= 1
    assert [job.case().spec.n for job in jobs][:2] == [kernel_jobs.MANY, jobs[1].case().spec.n]
    assert table["csr_cuda"] == {"kernels": 0, "worst": 0.0, "not_served": 1, "failures": []}


@pytest.mark.parametrize("error", [3.0, float("inf"), float("nan")])
def test_wrong_and_undefined_results_are_failures(tmp_path, monkeypatch, error):
    monkeypatch.setattr(kernel_jobs.Case, "error", lambda *_: error)
    job = asdict(kernel_jobs.Job("dense_cpu", index=1))
    request = {"job": job, "target": "llvm", "library": str(tmp_path / "kernel.so")}
    assert kernel_jobs.build(request).keys() == {"space"}
    result = {"schedule": "dense_cpu", **kernel_jobs.judged(kernel_jobs.run(request))}
    assert result["cause"] == f"{error:.3g} times the error bound"
    row = summary([result])["dense_cpu"]
    assert (row["kernels"], row["worst"], row["failures"]) == (1, 0.0, [result])


def test_a_kernel_that_cannot_be_built_is_a_failure(tmp_path, monkeypatch):
    def fail(*_):
        raise RuntimeError("cannot be built")

    monkeypatch.setattr(kernel_jobs.lowering, "build", fail)
    request = {"job": asdict(kernel_jobs.Job("dense_cpu")), "target": "llvm", "library": str(tmp_path / "kernel.so")}
    found = kernel_jobs.build(request)
    assert found["cause"] == "RuntimeError: cannot be built" and found["space"].startswith("dense_cpu")


def test_a_crash_or_an_error_is_that_of_its_case_and_schedule(tmp_path, monkeypatch):
    """Case 13 crashes and case 14 raises in csr_cpu; all others are well."""
    script = tmp_path / "worker.py"
    script.write_text("""
import os
from tvm_sparse.measure.serve import serve

def build(request):
    if (request["job"]["index"], request["job"]["schedule"]) == (13, "csr_cpu"):
        os.kill(os.getpid(), 11)
    return {"space": "any"}

def run(request):
    if (request["job"]["index"], request["job"]["schedule"]) == (14, "csr_cpu"):
        raise RuntimeError("cannot be run")
    return {"worst": 0.5}

serve({"build": build, "run": run})
""")
    monkeypatch.setattr(kernel_jobs, "WORKER", (sys.executable, str(script)))
    jobs = kernel_jobs.random_jobs(range(10, 30), 0, ["folded_cpu", "csr_cpu"], on_gpu=False)
    table = summary(kernel_jobs.check(jobs, 1, "llvm"))
    assert [row["kernels"] for row in table.values()] == [20, 20]
    assert table["folded_cpu"]["failures"] == []
    crash, error = table["csr_cpu"]["failures"]
    assert (crash["index"], error["index"]) == (13, 14)
    assert "killed by SIGSEGV" in crash["cause"]
    assert error["cause"] == "RuntimeError: cannot be run" and error["case"].startswith("Case(")
