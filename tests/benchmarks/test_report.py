"""The report on Table 2: results kept and merged, verdicts, tables, plots and searches."""

from __future__ import annotations

import json
import lzma
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from table2_made import H200, SWEPT, contender, make_case, make_document, make_record, with_cold_code

from benchmarks import comparison
from benchmarks.report import pages, plots, search_curves, tables
from benchmarks.results import OURS, Case, Device, Document, TuningCurve
from tvm_sparse.errors import LogError, UsageError
from tvm_sparse.logs.tuning_log import TuningLog

RESULTS = Path(__file__).parents[2] / "docs" / "results"


@pytest.mark.parametrize("suffix", ["json", "json.xz"])
def test_results_come_back_as_they_were(tmp_path: Path, suffix: str) -> None:
    document, path = make_document(), tmp_path / f"results.{suffix}"
    document.save(path)
    assert Document.load(path) == document
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.update(schema=2),
        lambda data: data["runs"][0]["cases"][0].pop("seed"),
        lambda data: data["runs"][0]["cases"][0]["contenders"][0].update(other=1),
        lambda data: data["runs"].append(3),
    ],
)
def test_damaged_results_are_one_sentence(tmp_path: Path, change: Any) -> None:
    path = tmp_path / "results.json"
    make_document().save(path)
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    with pytest.raises(LogError, match=r"results\.json"):
        Document.load(path)
    for damaged in (b"[", b"[]", lzma.compress(b"{}")):
        path.write_bytes(damaged)
        with pytest.raises(LogError, match=r"results\.json"):
            Document.load(path)


def test_results_of_before_cold_code_are_read(tmp_path: Path) -> None:
    document, path = make_document(), tmp_path / "results.json"
    document.save(path)
    data = json.loads(path.read_text())
    for each in (each for run in data["runs"] for case in run["cases"] for each in case["contenders"]):
        del each["cold_code_us"]
    path.write_text(json.dumps(data))
    assert Document.load(path) == document


def test_merging_keeps_each_run_once() -> None:
    document = make_document()
    assert Document.merge([document, document]) == document
    other = replace(document, runs=(replace(document.runs[0], started="later"),), tuning=())
    assert len(Document.merge([document, other]).runs) == 3


def test_the_best_variant_stands_for_its_family() -> None:
    case = make_case(6, 64, SWEPT)
    for families, variant in ((comparison.CUDNN_FP32, "nchw"), (comparison.CUDNN_TF32, "nhwc")):
        assert comparison.best(case, families).variant == variant
    assert comparison.best(case, [OURS], 0.5).density == 0.5
    assert comparison.best(case, [OURS], 0.3) is None
    # What left after the pilot has no rounds to compare.
    assert comparison.best(case, ["escort-prepadded"], 0.05) is None
    fp32, tf32 = (comparison.against(case, 0.1, each) for each in (("cudnn-fp32",), comparison.CUDNN_TF32))
    assert (fp32.ratio.median, fp32.verdict) == (pytest.approx(4), "faster")
    assert (tf32.ratio.median, tf32.verdict) == (pytest.approx(0.95), "slower")


def test_a_verdict_needs_three_quarters_of_the_rounds() -> None:
    ours = contender(OURS, 1, 0.1, cold_us=(10.0, 10.0, 10.0, 10.0))
    for times, verdict in (((11.0,) * 4, "faster"), ((9.0,) * 4, "slower"), ((11.0, 9.0, 11.0, 9.0), "undecided")):
        baseline = contender("cudnn-fp32", 1, cold_us=times)
        case = Case(operator=1, batch=1, seed=0, calls=1, contenders=(ours, baseline), seconds=0)
        assert comparison.against(case, 0.1, ["cudnn-fp32"]).verdict == verdict


@pytest.mark.parametrize(
    ("ratios", "found"),
    [
        ([], ("unknown", None)),
        ([(0.1, 0.9), (0.05, 1.0)], ("never", None)),
        ([(0.1, 4.0), (0.9, 1.1)], ("always", 0.9)),
        ([(0.4, 0.5), (0.1, 2.0), (0.9, 0.1)], ("below", pytest.approx(0.2))),
    ],
)
def test_where_winning_ends(ratios: list[tuple[float, float]], found: Any) -> None:
    assert comparison.crossing(ratios) == found


def test_the_roof() -> None:
    """Operator 9, batch 64: 2 * 3686 * 64 * 224 * 224 operations, and two tensors of 64 * 64 * 224 * 224 floats."""
    case = make_case(9, 64, (0.1,))
    roof = comparison.roof(case, 0.1, H200)
    assert roof.compute_us == pytest.approx(2 * 3686 * 64 * 224**2 / (132 * 128 * 2 * 1.98e9) * 1e6)
    assert roof.memory_us == pytest.approx(8 * 64 * 64 * 224**2 / 4.3e12 * 1e6, rel=1e-4)
    assert roof.time_us == roof.memory_us
    by_name = comparison.peak_flops(Device(name="NVIDIA H100 80GB HBM3", arch="sm_90"))
    assert by_name == pytest.approx(comparison.peak_flops(H200), rel=0.01)
    assert comparison.roof(case, 0.1, Device(name="other", arch="sm_80")) is None


def test_the_report(tmp_path: Path) -> None:
    """Everything measured is in it, and a report made from its own results is the same."""
    document = make_document()
    first = pages.write(document, 0.1, tmp_path / "first", "new", True)
    again = pages.write(pages.load(first[:1], []), 0.1, tmp_path / "again", "new", True)
    for one, other in zip(first, again, strict=True):
        assert one.read_bytes() == other.read_bytes()
    text, page = first[1].read_text(), first[2].read_text()
    assert "100 (99" in text and "**4.00x**" in text and "**0.95x**" in text and "slower" in text
    # The table at one density is of the case in which all baselines ran at it.
    verdicts = tables.tables(document, 0.1)[0]
    assert [row[0] for row in verdicts.rows] == ["1", "6", "7"]
    assert all(row[5].startswith("escort 300") for row in verdicts.rows)
    # 95 / 1000: the crossing with TF32 lies below 0.1, that with float32 below 0.5.
    densities = next(table for table in tables.tables(document, 0.1) if table.title == "Density")
    assert [(*row[:2], row[-3], row[-1]) for row in densities.rows] == [(op, "64", "0.4", "0.095") for op in ("6", "7")]
    assert page.count("<svg") == 4 and "bench &lt;one&gt;" in page
    # Self-contained: addresses are only the names of XML's and of metadata's vocabularies.
    assert not re.search(r"<script|<link|<img|(src|href)=.?https?:|url\(.?https?:", page)
    for table in tables.tables(document, 0.1):
        assert table.rows, table.title
        assert {len(row) for row in table.rows} == {len(table.header)}
        assert (f"## {table.title}" not in text) == table.detail and f"<h2>{table.title}</h2>" in page


def test_the_report_of_cold_code(tmp_path: Path) -> None:
    """Ours takes 100 us with warm and 200 with cold code, cuDNN 400 and 500 in float32, 95 and 195 in TF32."""
    plain = make_document()
    text = pages.write(plain, 0.1, tmp_path, "plain", False)[1].read_text()
    assert "old code" not in text and not any("old code" in table.title for table in tables.tables(plain, 0.1))
    cases = tuple(with_cold_code(case) for case in plain.runs[0].cases if case.operator != 7)
    document = replace(plain, runs=(*plain.runs, replace(plain.runs[0], command="cold code", cases=cases)))
    found = {table.title: table for table in tables.tables(document, 0.1)}
    verdicts, layouts = found["Cold code"], found["Cold code, each layout of cuDNN"]
    # Only operators that were timed so, in their own run; the other tables stay as they were.
    assert [row[:2] for row in verdicts.rows] == [("1", "1"), ("1", "64"), ("6", "1"), ("6", "64"), *means(1, 64)]
    assert verdicts.rows[0][2:5] == (
        "200 (199.7-200.3), warm 100",
        "fp32 nchw 500: **2.50x** faster (4.00x)",
        "tf32 nhwc 195: **0.97x** slower (0.95x)",
    )
    assert verdicts.rows[0][6].startswith("escort 400: **2.00x** faster (3.00x)")
    assert verdicts.rows[-1][2:5] == ("-", "**2.50x** (4.00x)", "**0.97x** (0.95x)")
    assert layouts.header[3:7] == ("float32 nchw", "float32 nhwc", "TF32 nchw", "TF32 nhwc")
    # The other layout of float32 left after the pilot, that of TF32 was not run.
    assert layouts.rows[0][2:7] == ("200", "500 (2.50x)", "-", "-", "195 (0.97x)")
    methods = found["Cold code, every method"]
    assert dict(zip(methods.header, methods.rows[0], strict=True))["escort"] == "400"
    for table in (verdicts, layouts, methods):
        assert {len(row) for row in table.rows} == {len(table.header)} and len(table.rows) >= 4
    assert {t.title for t in tables.tables(plain, 0.1)} == {title for title in found if "old code" not in title}


def means(*batches: int) -> list[tuple[str, str]]:
    """How the rows of geometric means begin."""
    return [("all", str(batch)) for batch in batches]


def test_the_page_in_docs_is_made_again_from_its_results(tmp_path: Path) -> None:
    document = pages.load([RESULTS / "table2-h200.json.xz"], [])
    saved, page = pages.write(document, 0.1, tmp_path, "table2-h200", False)
    assert page.read_text() == (RESULTS / page.name).read_text()
    assert Document.load(saved) == document and len(document.runs) == 2


def test_a_report_of_little(tmp_path: Path) -> None:
    """One contender in one case, and nothing else."""
    case = replace(make_case(2, 1, (0.1,)), contenders=(contender(OURS, 5, 0.1),))
    run = replace(make_document().runs[0], cases=(case,), device=Device(name="CPU", arch="znver5"))
    paths = pages.write(Document(runs=(run,)), 0.1, tmp_path, "new", False)
    assert "Not measured." in paths[1].read_text() and "5 (4.9" in paths[1].read_text()
    assert plots.plots(Document(runs=(run,)), 0.7) == []


def test_a_report_is_of_one_gpu(tmp_path: Path) -> None:
    document = make_document()
    other = replace(document.runs[0], device=replace(H200, name="NVIDIA H100"))
    for name, saved in (("one", document), ("two", replace(document, runs=(other,)))):
        saved.save(tmp_path / name)
    with pytest.raises(UsageError, match="NVIDIA H100, NVIDIA H200"):
        pages.load([tmp_path / "one", tmp_path / "two"], [])
    with pytest.raises(UsageError, match="LABEL=LOG"):
        pages.load([tmp_path / "one"], ["log.jsonl"])


def test_curves_come_from_logs(tmp_path: Path) -> None:
    log = TuningLog(tmp_path / "log.jsonl")
    # Out of order; the dense trial is no trial.
    for record in (make_record(50, 40), make_record(5, 1, "dense_cuda:a"), make_record(None, 10), make_record(70, 20)):
        log.append(record)
    (curve,) = search_curves.curves("random", log.path)
    assert curve == TuningCurve(
        label="random", operator=6, batch=64, density=0.1, best_us=(None, 70.0, 50.0), seconds=30.0
    )
    dense = TuningLog(tmp_path / "dense.jsonl")
    dense.append(make_record(5, 1, "dense_cuda:a"))
    with pytest.raises(LogError, match="no trial"):
        search_curves.curves("random", dense.path)


def test_searches_at_equal_trials() -> None:
    """Against the best of all searches, one that made a single trial included; layers that one lacks do not count."""
    document = make_document()
    searches = [
        *document.tuning,
        TuningCurve(label="log", operator=6, batch=64, density=0.1, best_us=(50.0,), seconds=0),
        TuningCurve(label="random", operator=1, batch=1, density=0.1, best_us=(1.0,) * 64, seconds=1),
    ]
    table = search_curves.equal_trials(replace(document, tuning=tuple(searches)))
    assert table.header == ("trials", "layers", "XGBoost ahead", "over best known", "random ahead", "over best known")
    assert table.rows == (
        ("1", "1", "0", "-", "0", "-"),
        ("2", "1", "0", "1.80", "0", "1.80"),
        ("4", "1", "1", "1.04", "0", "1.60"),
    )
    assert search_curves.equal_trials(replace(document, tuning=document.tuning[:1])).rows == ()
