"""Guided against random search: what is counted, compared and written, from logs made up here."""

import json
import math
import sys
from itertools import count

import pytest
import search_runs
import table2
import tuning_curves
from search_runs import Case, SearchRun

from tvm_sparse.errors import LogError
from tvm_sparse.log import TuningLog
from tvm_sparse.pattern import SparsityPattern
from tvm_sparse.records import TuningRecord

DENSE = "dense_cuda:a"
FAILED = None


def make_record(time_us, second=0, schedule="folded_cuda:a", operator=6, seed=0, weight_seed=0):
    return TuningRecord(
        spec=table2.spec(operator),
        pattern=SparsityPattern.of(table2.weight(operator, 0.1, weight_seed)),
        schedule=schedule,
        trace=None,
        decisions={},
        status="build_failed" if time_us is FAILED else "ok",
        times_us=() if time_us is FAILED else (time_us,),
        target={},
        fingerprint={"kind": "cuda", "arch": "sm_90", "threads": "1", "tvm": "0.27.0.post1"},
        seed=seed,
        timestamp=f"2026-11-20T09:{second // 60:02}:{second % 60:02}+00:00",
    )


def write(path, *records):
    log = TuningLog(path)
    for record in records:
        log.append(record)
    return path


def search(path, times_us, **fields):
    """A log with a dense trial, then one folded trial every two seconds."""
    folded = (make_record(time_us, 2 * second, **fields) for second, time_us in zip(count(1), times_us, strict=False))
    return write(path, make_record(1.0, 0, DENSE, **fields), *folded)


@pytest.fixture
def logs(tmp_path):
    """Operator 6: two guided seeds, one random. Operator 4: one each, the random one with all trials failed."""
    return {
        "guided": [
            search(tmp_path / "guided1.jsonl", (40, 20, FAILED, 20.5), seed=1),
            search(tmp_path / "guided2.jsonl", (30, 25, 24, 22), seed=2),
            search(tmp_path / "guided4.jsonl", (10, 8), operator=4),
        ],
        "random": [
            search(tmp_path / "random1.jsonl", (FAILED, 60, 50, 22), seed=1),
            search(tmp_path / "random4.jsonl", (FAILED, FAILED), operator=4),
        ],
    }


def test_runs_have_the_best_folded_time_after_each_folded_trial(tmp_path):
    """Out of order in the file; dense and other kernels are neither trials nor the best."""
    path = write(
        tmp_path / "log.jsonl",
        make_record(50, 40),
        make_record(5, 1, DENSE),
        make_record(FAILED, 10),
        make_record(80, 20, "generated_cpu"),
        make_record(20, 30, "csr_cuda"),
        make_record(60, 45),
    )
    (case,) = search_runs.cases({"guided": [path]})
    assert (case.name, case.best_us) == ("operator 6, batch 1, density 0.1", 50)
    assert case.searches == {"guided": (SearchRun(seed=0, ratios=(math.inf, 1.6, 1, 1), seconds=44),)}
    assert case.arrival("guided") == 3
    assert case.arrival("random") is case.after("random", 1) is case.seconds("random") is None


def test_one_log_may_hold_several_seeds_and_weights(tmp_path):
    records = [make_record(10 + i, i, seed=i % 2, weight_seed=i // 4) for i in range(8)]
    found = search_runs.cases({"guided": [write(tmp_path / "log.jsonl", *records)]})
    assert len({case.name for case in found}) == len({case.value_digest for case in found}) == 2
    for case in found:
        assert case.value_digest[:6] in case.name
        assert [run.seed for run in case.searches["guided"]] == [0, 1]
        assert [len(run.ratios) for run in case.searches["guided"]] == [2, 2]


def test_medians_are_of_the_runs_that_came_so_far():
    runs = (
        SearchRun(seed=0, ratios=(math.inf, 2, 1.05), seconds=10),
        SearchRun(seed=1, ratios=(3, 1.5), seconds=None),
        SearchRun(seed=2, ratios=(4, 1.1, 1.1), seconds=30),
    )
    case = Case(
        name="", spec=table2.spec(1), density=0.1, value_digest="", arch="", best_us=1, searches={"guided": runs}
    )
    assert [case.after("guided", trials) for trials in (1, 2, 3, 4)] == [4, 1.5, pytest.approx(1.075), None]
    assert (case.arrival("guided"), case.seconds("guided")) == (3, 20)


def test_searches_are_compared_at_equal_trials(logs):
    found = search_runs.cases(logs)
    rows = {row["trials"]: row for row in tuning_curves.document(found, logs)["comparison"]}
    counts = ("cases", "guided", "random", "equal", "guided_ahead")
    assert [rows[1][name] for name in counts] == [2, 2, 0, 0, 1.0]
    # Operator 6: 22.5 and 60 of 20, the best of all; in operator 4 no random kernel works, which has no ratio.
    assert rows[2]["ratios"] == {"guided": pytest.approx(1.125), "random": pytest.approx(3)}
    assert rows[1]["ratios"] is None
    assert [rows[4][name] for name in counts] == [1, 1, 0, 0, 1.0]
    assert rows[4]["ratios"] == {"guided": pytest.approx(1.05), "random": pytest.approx(1.1)}
    assert [rows[8][name] for name in counts] == [0, 0, 0, 0, None]
    swapped = search_runs.cases({"guided": logs["random"], "random": logs["guided"]})
    assert tuning_curves.comparison(swapped, 4)["guided_ahead"] == 0
    same = search_runs.cases({"guided": logs["guided"], "random": logs["guided"]})
    assert tuning_curves.comparison(same, 2)["equal"] == 2


def call(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["tuning_curves.py", *map(str, words)])
    return tuning_curves.main()


def test_what_is_written(logs, tmp_path, monkeypatch, capsys):
    paths = {name: tmp_path / f"curves.{name}" for name in ("json", "md", "svg")}
    words = [*logs["guided"], "--random", *logs["random"], "-o", paths["json"]]
    assert call(monkeypatch, *words, "--markdown", paths["md"], "--svg", paths["svg"]) == 0
    assert sorted(capsys.readouterr().out.splitlines()) == sorted(f"written: {path}" for path in paths.values())
    data = json.loads(paths["json"].read_text())
    four, six = data["cases"]
    assert (four["name"], six["best_us"]) == ("operator 4, batch 1, density 0.1", 20)
    assert six["searches"]["guided"] == {
        "seeds": [1, 2],
        "trials": [4, 4],
        "ratio_after": {"1": 1.75, "2": 1.125, "4": 1.05, "8": None, "16": None, "32": None, "64": None},
        "near_after": 3,
        "seconds": 8,
    }
    assert six["searches"]["random"]["near_after"] == 4
    assert four["searches"]["random"]["near_after"] is None
    text = paths["md"].read_text()
    assert "- guided: guided1.jsonl, guided2.jsonl, guided4.jsonl" in text
    assert "| 4 | 1 | 1 | 0 | 0 | 100% | 1.050 | 1.100 |" in text
    assert "| operator 6, batch 1, density 0.1 | 20 | guided | 2 | 1.75 | 1.12 | 1.05 | - | - | - | - | 3 | 8 |" in text
    plot = paths["svg"].read_text()
    assert plot.startswith("<svg") and all(case["name"] in plot for case in data["cases"])
    # Without a file the tables are printed; without a random search nothing is compared.
    assert call(monkeypatch, *logs["guided"], "-o", paths["json"]) == 0
    text = capsys.readouterr().out
    assert "Not measured." in text and "| 1.75 |" in text


def test_mistakes_are_one_sentence(logs, tmp_path, monkeypatch, capsys):
    guided, damaged = logs["guided"][0], tmp_path / "damaged.jsonl"
    damaged.write_text(guided.read_text()[:-20])
    dense = write(tmp_path / "dense.jsonl", make_record(5, 1, DENSE), make_record(FAILED, 2))
    for words, code, sentence in (
        ([guided, "--random", guided], 2, "--random: a log is of one search, found "),
        ([tmp_path / "missing.jsonl"], 3, "missing.jsonl"),
        ([damaged], 3, "damaged.jsonl, line 5: "),
        ([dense], 3, "dense.jsonl: no folded kernel is in it"),
    ):
        assert call(monkeypatch, *words, "-o", tmp_path / "curves.json") == code
        error = capsys.readouterr().err
        assert sentence in error and error.count("\n") == 1
    assert not (tmp_path / "curves.json").exists()
    with pytest.raises(LogError, match="no folded kernel"):
        search_runs.cases({"guided": [], "random": [dense]})
