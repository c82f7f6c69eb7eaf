"""The page of a log: every sparse record in words. The shared logs are in order."""

import json
from dataclasses import replace
from importlib import resources
from pathlib import Path

import pytest
from factories import make_record

from tvm_sparse.cli import main
from tvm_sparse.logs.log_page import page
from tvm_sparse.logs.merge import write
from tvm_sparse.logs.tuning_log import TuningLog

SHARED = sorted(Path(str(resources.files("tvm_sparse.tuning_logs"))).rglob("*.jsonl*"))


@pytest.mark.parametrize("path", SHARED, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_a_shared_log_is_sorted_and_has_a_page(path):
    log = TuningLog(path)
    assert not log.rejected and log.records
    lines = [record.to_line() for record in log.records]
    assert lines == sorted(lines), f"write it with tvm-sparse logs merge {path}"
    assert page(log).startswith(f"# {path.name}\n")


def test_decisions_times_and_failures_are_on_the_page(tmp_path, capsys):
    found = make_record()
    other = replace(found.pattern, value_digest="0" * 32)
    generated = replace(
        found, schedule="generated_cpu", pattern=other, decisions={}, trace=[[], []], dense_times_us=(), baseline=""
    )
    slower = replace(found, schedule="csr_cpu", times_us=(13.0,))
    failed = replace(found, status="timeout", times_us=(), error=None, seed=8)
    path = tmp_path / "log.jsonl"
    write(path, [slower, found, generated, failed, replace(found, schedule="dense_cpu")])
    assert main.main(["logs", "page", str(path), "--json"]) == 0
    (found_page,) = json.loads(capsys.readouterr().out)["pages"]
    text = found_page["text"]
    assert found_page["log"] == str(path)
    assert main.main(["logs", "page", str(path)]) == 0
    assert capsys.readouterr().out == text
    times = "12.5 | dense_cpu | 31.5 | 2.52x |"
    assert f"| {found.spec.key} | {found.pattern.density:.3g} | folded_cpu | k_tile 16, pixels 4x16 | {times}" in text
    assert "MetaSchedule's trace | 12.5 |  |  |  |" in text
    assert "Not shown: 1 slower, 1 timeout." in text and "csr_cpu" not in text
    assert "| dense_cpu |  |" not in text


def test_cold_times_have_columns_of_their_own_and_the_ratio(tmp_path):
    warm = make_record()
    other = replace(warm.pattern, value_digest="0" * 32)
    cold = replace(warm, pattern=other, cold_times_us=(20.0, 25.0, 30.0), dense_cold_times_us=(50.0,), seed=8)
    log = TuningLog(tmp_path / "log.jsonl")
    for each in (warm, cold):
        log.append(each)
    text = page(log)
    assert "| 12.5 | dense_cpu | 31.5 | 2.52x |  |  |" in text
    assert "| 12.5 | dense_cpu | 31.5 | 2.00x | 25 | 50 |" in text
    assert "| ratio | cold us | its cold us |" in text
    assert "by which the ratio goes" in text
