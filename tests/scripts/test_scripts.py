"""The scripts that tune and time: their table of operators, their reports, and one short run of all of them."""

import json
import lzma
import math
import re
import runpy
import subprocess
import sys
from pathlib import Path

import command_line
import numpy as np
import pytest

from benchmarks import cpu_suite, operators
from benchmarks.cpu_contenders import BASELINES, DENSE, OURS
from tvm_sparse.logs.tuning_log import TuningLog

SCRIPTS = Path(__file__).parents[2] / "scripts" / "table2"
RESULTS = Path(__file__).parents[2] / "docs" / "results"


def run_here(monkeypatch, capsys, script, *words):
    """The exit code of a script that is run in this process, and what it says."""
    monkeypatch.setattr(sys, "argv", [script, *map(str, words)])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(SCRIPTS / f"{script}.py"), run_name="__main__")
    return end.value.code or 0, capsys.readouterr().err


def test_the_operators_have_the_outputs_of_the_table():
    for operator, (out, c, k, kernel, _) in operators.OPERATORS.items():
        spec = operators.spec(operator, 3)
        assert spec.output_shape == (3, k, out, out)
        assert spec.weight_shape == (k, c, kernel, kernel)


@pytest.mark.parametrize("density", [0.0, 0.1, 0.5, 1.0])
def test_weights_have_the_density_and_keep_the_largest(density):
    weight, full = operators.weight(5, density), operators.weight(5, 1.0)
    assert np.count_nonzero(weight) == round(density * weight.size)
    kept = weight != 0
    assert (weight[kept] == full[kept]).all()
    assert abs(full[kept]).min(initial=math.inf) >= abs(full[~kept]).max(initial=0)
    assert (operators.weight(5, density, seed=1) != weight).any() or density == 0


def test_lists_on_command_lines():
    assert command_line.numbers("1,4-6") == [1, 4, 5, 6]
    assert command_line.densities("0.05,1") == [0.05, 1.0]
    for function, text in (
        (command_line.operators, "0-3"),
        (command_line.operators, "11"),
        (command_line.densities, "1.5"),
    ):
        with pytest.raises(ValueError, match=text):
            function(text)


def make_document():
    case = {"operator": 7, "batch": 1, "density": 0.1, "convolution": "key"}
    times = {OURS: [10.0, 11.0, 12.0], DENSE: [50.0] * 3, **{name: [44.0] * 3 for name in BASELINES}}
    times[BASELINES[1]] = [22.0, 33.0, 22.0]
    cases = [{**case, "schedule": "folded_cpu:a", "times_us": times}, {**case, "skipped": "no record"}]
    return {
        "command": "python scripts/table2/bench_cpu.py",
        "fingerprint": {"device": "EPYC", "arch": "znver4", "system": "Linux"},
        "versions": {"torch": "2"},
        "rounds": 3,
        "load_average": [0.1, 0.2],
        "runs": [{"threads": 1, "call_overhead_us": {OURS: 0.25}, "cases": cases}],
    }


def test_the_page_compares_with_the_better_layout():
    lines = cpu_suite.page(make_document()).splitlines()
    head, _, row, skipped = (line for line in lines if line.startswith("|"))
    assert "**2.20x** (2.02-2.60), faster" in row
    assert f"2.20x ({BASELINES[1]})" in row
    assert "not measured: no record" in skipped
    assert head.count("|") == row.count("|") == skipped.count("|")


def test_the_page_in_docs_is_made_again_from_its_results():
    """But for last digits: times are kept with four."""
    document = json.loads(lzma.decompress((RESULTS / "table2-znver5.json.xz").read_bytes()))
    pages = cpu_suite.page(document), (RESULTS / "table2-znver5.md").read_text()
    words, kept_words = (re.split(r"\d+(?:\.\d+)?", page) for page in pages)
    times, kept_times = (np.array(re.findall(r"\d+(?:\.\d+)?", page), float) for page in pages)
    assert words == kept_words
    np.testing.assert_allclose(times, kept_times, rtol=5e-3)


@pytest.mark.exhaustive
def test_tune_and_bench(tmp_path, monkeypatch, capsys):
    log = tmp_path / "log.jsonl"
    words = ["--target", '{"kind":"llvm","num-cores":1}', "--operators", 2, "--trials", 4, "-o", log]
    for _ in range(2):
        code, said = run_here(monkeypatch, capsys, "tune", *words)
        assert code == 0, said
        assert len(TuningLog(log).records) == 4
    words = ["--log", log, "--operators", "2,6", "--threads", 1, "--repeat", 2, "--results", tmp_path, "--name", "new"]
    # A process of its own: it sets the number of its threads.
    command = [sys.executable, SCRIPTS / "bench_cpu.py", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    measured, skipped = json.loads(lzma.decompress((tmp_path / "new.json.xz").read_bytes()))["runs"][0]["cases"]
    assert set(measured["times_us"]) == {OURS, DENSE, *BASELINES}
    assert measured["errors"][OURS] <= 1
    assert "no record for this shape" in skipped["skipped"]
    assert "operator 2" in done.stderr and "| 2 | 1 | 0.1 |" in done.stdout
    assert (tmp_path / "new.md").is_file()


def test_two_searches_without_a_case_in_common_are_not_compared(tmp_path, monkeypatch, capsys):
    words = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    code, said = run_here(monkeypatch, capsys, "compare_spaces", *words)
    assert code == 2
    assert said.startswith("logs: have no case that both tuned") and "Traceback" not in said


@pytest.mark.parametrize(
    ("script", "words", "code"),
    [
        ("bench_cpu", ["--log", "missing/log.jsonl", "--threads", 1, "--operators", 1], 3),
        ("tune", ["--target", "missing", "-o", "log.jsonl"], 2),
    ],
)
def test_mistakes_are_one_sentence(tmp_path, monkeypatch, capsys, script, words, code):
    monkeypatch.chdir(tmp_path)
    found, said = run_here(monkeypatch, capsys, script, *words)
    assert found == code
    assert "missing" in said.splitlines()[-1] and "Traceback" not in said
