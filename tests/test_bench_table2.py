"""The GPU benchmark of Table 2 without a GPU: references, verdicts, results, report, and a trial run on the CPU."""

from __future__ import annotations

import itertools
import json
import lzma
import math
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path
from typing import Any

import bench_table2
import cubin
import gpu_clock
import gpu_reference
import gpu_runner
import numpy as np
import pytest
import report_plots
import report_table2
import report_tables
import report_tuning
import table2
import table2_case
import table2_compare
import table2_entries
import table2_kernels
import torch
from table2_results import OURS, Case, Contender, Device, Document, Run, TuningCurve

from tvm_sparse import environment, reference
from tvm_sparse.conv import ConvSpec
from tvm_sparse.errors import LogError, UsageError
from tvm_sparse.log import TuningLog
from tvm_sparse.pattern import SparsityPattern
from tvm_sparse.peers import NotServed, Prepared
from tvm_sparse.records import TuningRecord

SCRIPTS = Path(__file__).parents[1] / "scripts"
H200 = Device(name="NVIDIA H200", arch="sm_90", multiprocessors=132, clock_mhz=1980, l2_bytes=50 << 20, driver="580")
SPARSE = ("folded_cuda", "csr_cuda")
SWEPT = (0.9, 0.5, 0.1, 0.05)


def contender(family: str, time_us: float, density: float | None = None, **fields: Any) -> Contender:
    """One that took about `time_us` in each of eight rounds."""
    exact = not family.endswith(("tf32", "fp16"))
    times = tuple(time_us * (1 + 0.01 * offset) for offset in (0, 1, -1, 0.5, -0.5, 0, 0.2, -0.2))
    plain = {"variant": "", "tolerance": None, "status": "ok", "error": 0.1, "final": True, "cold_us": times}
    return Contender(**{"family": family, "density": density, "exact": exact, **plain, **fields})


def make_case(operator: int, batch: int, densities: tuple[float, ...]) -> Case:
    """Ours takes 1000 times the density, cuDNN 400 us in float32 and 95 in TF32, both in two layouts."""
    ours = [
        contender(
            OURS, 1000 * d, d, detail="folded_cuda:async", code_bytes=65536, warm_us=(900 * d,), predicted_us=800 * d
        )
        for d in densities
    ]
    rivals = [
        contender("cudnn-fp32", 400, variant="nchw", warm_us=(390.0,)),
        contender("cudnn-fp32", 440, variant="nhwc", final=False),
        contender("cudnn-tf32", 95, variant="nhwc", warm_us=(94.0,)),
        contender("cudnn-fp16", 50, variant="nhwc"),
        contender("escort", 300, densities[-1]),
        contender("im2col-cusparse", 900, densities[-1], variant="cnhw"),
        replace(contender("escort-prepadded", 1, densities[-1], cold_us=(), final=False), status="failed", cause="why"),
    ]
    return Case(operator=operator, batch=batch, seed=0, calls=8, contenders=(*ours, *rivals), seconds=1.5)


def make_document() -> Document:
    """Some operators at density 0.1, and two of them swept; two searches."""
    cases = tuple(make_case(operator, batch, (0.1,)) for operator in (1, 6, 7) for batch in (64, 1))
    swept = tuple(make_case(operator, 64, SWEPT) for operator in (6, 7))
    run = Run(command="bench <one>", started="now", device=H200, versions={"torch": "2"}, rounds=8, cases=cases)
    tuning = (
        TuningCurve(label="random", operator=6, batch=64, density=0.1, best_us=(None, 90.0, 80.0, 80.0), seconds=30),
        TuningCurve(label="XGBoost", operator=6, batch=64, density=0.1, best_us=(None, 90.0, 60.0, 52.0), seconds=33),
    )
    return Document(runs=(run, replace(run, command="bench two", cases=swept)), tuning=tuning)


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


def test_merging_keeps_each_run_once() -> None:
    document = make_document()
    assert Document.merge([document, document]) == document
    other = replace(document, runs=(replace(document.runs[0], started="later"),), tuning=())
    assert len(Document.merge([document, other]).runs) == 3


def test_the_best_variant_stands_for_its_family() -> None:
    case = make_case(6, 64, SWEPT)
    for families, variant in ((table2_compare.CUDNN_FP32, "nchw"), (table2_compare.CUDNN_TF32, "nhwc")):
        assert table2_compare.best(case, families).variant == variant
    assert table2_compare.best(case, [OURS], 0.5).density == 0.5
    assert table2_compare.best(case, [OURS], 0.3) is None
    # What left after the pilot has no rounds to compare.
    assert table2_compare.best(case, ["escort-prepadded"], 0.05) is None
    fp32, tf32 = (table2_compare.against(case, 0.1, each) for each in (("cudnn-fp32",), table2_compare.CUDNN_TF32))
    assert (fp32.ratio.median, fp32.verdict) == (pytest.approx(4), "faster")
    assert (tf32.ratio.median, tf32.verdict) == (pytest.approx(0.95), "slower")


def test_a_verdict_needs_three_quarters_of_the_rounds() -> None:
    ours = contender(OURS, 1, 0.1, cold_us=(10.0, 10.0, 10.0, 10.0))
    for times, verdict in (((11.0,) * 4, "faster"), ((9.0,) * 4, "slower"), ((11.0, 9.0, 11.0, 9.0), "undecided")):
        rival = contender("cudnn-fp32", 1, cold_us=times)
        case = Case(operator=1, batch=1, seed=0, calls=1, contenders=(ours, rival), seconds=0)
        assert table2_compare.against(case, 0.1, ["cudnn-fp32"]).verdict == verdict


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
    assert table2_compare.crossing(ratios) == found


def test_the_roof() -> None:
    """Operator 9, batch 64: 2 * 3686 * 64 * 224 * 224 operations, and two tensors of 64 * 64 * 224 * 224 floats."""
    case = make_case(9, 64, (0.1,))
    roof = table2_compare.roof(case, 0.1, H200)
    assert roof.compute_us == pytest.approx(2 * 3686 * 64 * 224**2 / (132 * 128 * 2 * 1.98e9) * 1e6)
    assert roof.memory_us == pytest.approx(8 * 64 * 64 * 224**2 / 4.32e12 * 1e6, rel=1e-4)
    assert roof.time_us == roof.memory_us
    by_name = table2_compare.peak_flops(Device(name="NVIDIA H100 80GB HBM3", arch="sm_90"))
    assert by_name == pytest.approx(table2_compare.peak_flops(H200), rel=0.01)
    assert table2_compare.roof(case, 0.1, Device(name="other", arch="sm_80")) is None


def test_the_report(tmp_path: Path) -> None:
    """Everything measured is in it, and a report made from its own results is the same."""
    document = make_document()
    first = report_table2.write(document, 0.1, tmp_path / "first", "new", True)
    again = report_table2.write(report_table2.load(first[:1], []), 0.1, tmp_path / "again", "new", True)
    for one, other in zip(first, again, strict=True):
        assert one.read_bytes() == other.read_bytes()
    text, page = first[1].read_text(), first[2].read_text()
    assert "100 (99" in text and "**4.00x**" in text and "**0.95x**" in text and "slower" in text
    # The table at one density is of the case in which all rivals ran at it.
    verdicts = report_tables.tables(document, 0.1)[0]
    assert [row[0] for row in verdicts.rows] == ["1", "6", "7"]
    assert all(row[5].startswith("escort 300") for row in verdicts.rows)
    # 95 / 1000: the crossing with TF32 lies below 0.1, that with float32 below 0.5.
    crossings = next(table for table in report_tables.tables(document, 0.1) if table.title == "Where winning ends")
    assert crossings.rows == (("6", "64", "0.4", "0.095"), ("7", "64", "0.4", "0.095"))
    assert page.count("<svg") == 4 and "bench &lt;one&gt;" in page
    # Self-contained: addresses are only the names of XML's and of metadata's vocabularies.
    assert not re.search(r"<script|<link|<img|(src|href)=.?https?:|url\(.?https?:", page)
    for table in report_tables.tables(document, 0.1):
        assert table.rows, table.title
        assert {len(row) for row in table.rows} == {len(table.header)}
        assert f"## {table.title}" in text and f"<h2>{table.title}</h2>" in page


def test_a_report_of_little(tmp_path: Path) -> None:
    """One contender in one case, and nothing else."""
    case = replace(make_case(2, 1, (0.1,)), contenders=(contender(OURS, 5, 0.1),))
    run = replace(make_document().runs[0], cases=(case,), device=Device(name="CPU", arch="znver5"))
    paths = report_table2.write(Document(runs=(run,)), 0.1, tmp_path, "new", False)
    assert "Not measured." in paths[1].read_text() and "5 (4.9" in paths[1].read_text()
    assert report_plots.plots(Document(runs=(run,)), 0.7) == []


def test_a_report_is_of_one_gpu(tmp_path: Path) -> None:
    document = make_document()
    other = replace(document.runs[0], device=replace(H200, name="NVIDIA H100"))
    for name, saved in (("one", document), ("two", replace(document, runs=(other,)))):
        saved.save(tmp_path / name)
    with pytest.raises(UsageError, match="NVIDIA H100, NVIDIA H200"):
        report_table2.load([tmp_path / "one", tmp_path / "two"], [])
    with pytest.raises(UsageError, match="LABEL=LOG"):
        report_table2.load([tmp_path / "one"], ["log.jsonl"])


def make_record(time_us: float | None, second: int, schedule: str = "folded_cuda:a") -> TuningRecord:
    spec, weight = table2.spec(6, 64), table2.weight(6, 0.1)
    return TuningRecord(
        spec=spec,
        pattern=SparsityPattern.of(weight),
        schedule=schedule,
        trace=None,
        decisions={},
        status="build_failed" if time_us is None else "ok",
        times_us=() if time_us is None else (time_us,),
        target={},
        fingerprint={"kind": "cuda", "arch": "sm_90", "threads": "1", "tvm": "0.27.0.post1"},
        seed=0,
        timestamp=f"2026-11-20T09:30:{second:02}+00:00",
    )


def test_curves_come_from_logs(tmp_path: Path) -> None:
    log = TuningLog(tmp_path / "log.jsonl")
    # Out of order; the dense trial is no trial.
    for record in (make_record(50, 40), make_record(5, 1, "dense_cuda:a"), make_record(None, 10), make_record(70, 20)):
        log.append(record)
    (curve,) = report_tuning.curves("random", log.path)
    assert curve == TuningCurve(
        label="random", operator=6, batch=64, density=0.1, best_us=(None, 70.0, 50.0), seconds=30.0
    )
    dense = TuningLog(tmp_path / "dense.jsonl")
    dense.append(make_record(5, 1, "dense_cuda:a"))
    with pytest.raises(LogError, match="no trial"):
        report_tuning.curves("random", dense.path)


def test_searches_at_equal_trials() -> None:
    """Against the best of all searches, one that made a single trial included; layers that one lacks do not count."""
    document = make_document()
    searches = [
        *document.tuning,
        TuningCurve(label="log", operator=6, batch=64, density=0.1, best_us=(50.0,), seconds=0),
        TuningCurve(label="random", operator=1, batch=1, density=0.1, best_us=(1.0,) * 64, seconds=1),
    ]
    table = report_tuning.equal_trials(replace(document, tuning=tuple(searches)))
    assert table.header == ("trials", "layers", "XGBoost ahead", "over best known", "random ahead", "over best known")
    assert table.rows == (
        ("1", "1", "0", "-", "0", "-"),
        ("2", "1", "0", "1.80", "0", "1.80"),
        ("4", "1", "1", "1.04", "0", "1.60"),
    )
    rows = report_tuning.tuning(replace(document, tuning=tuple(searches))).rows
    assert [row[3] for row in rows] == ["random", "XGBoost", "log", "random"]
    assert rows[1] == ("6", "64", "0.1", "XGBoost", "4", "52", "-", "1.80", "1.04", *"----", "4", "33")
    assert report_tuning.equal_trials(replace(document, tuning=document.tuning[:1])).rows == ()


@pytest.mark.parametrize(
    "spec",
    [
        ConvSpec(3, 4, 9, 7, 6, 3, 2, stride=(2, 1), padding=(1, 0, 2, 1), dilation=(1, 2), groups=2),
        ConvSpec(1, 3, 8, 8, 5, 5, 5),
    ],
)
def test_the_reference_on_the_device_is_the_reference(spec: ConvSpec) -> None:
    x = reference.random_arguments(spec, 3)["x"]
    weight = np.random.default_rng(4).standard_normal(spec.weight_shape).astype(np.float32)
    weight[0] = 0
    found, wanted = gpu_reference.expected(spec, torch.from_numpy(x), weight), reference.reference(spec, x, weight)
    np.testing.assert_allclose(found.value.numpy(), wanted.value, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(found.bound.numpy(), wanted.bound, rtol=1e-12)
    y = wanted.value.astype(np.float32) + wanted.bound.max().astype(np.float32) / 3
    y[:, 0] = 0
    assert found.error(torch.from_numpy(y), None) == pytest.approx(wanted.worst(y))
    assert found.error(torch.from_numpy(y), 1.0) == pytest.approx(abs(y - wanted.value).max() / abs(wanted.value).max())
    y[0, 0, 0, 0] = 1e-30  # A dead filter allows nothing.
    assert found.error(torch.from_numpy(y), None) == math.inf
    y[0, 0, 0, 0] = np.nan
    assert found.error(torch.from_numpy(y), 1.0) == math.inf


def test_every_image_must_be_written() -> None:
    spec = ConvSpec(3, 2, 6, 6, 2, 3, 3)
    weight = np.ones(spec.weight_shape, np.float32)
    x = torch.ones(spec.input_shape)
    references = gpu_reference.References(x)
    y = torch.full(spec.output_shape, 18.0)
    assert references.error(spec, weight, y, None) == 0
    for image, value in itertools.product(range(3), (math.nan, 0.0)):
        wrong = y.clone()
        wrong[image, 0, 0, 0] = value
        # Of the images between the first and the last only that they are written is seen.
        assert references.error(spec, weight, wrong, None) > 1 or (image, value) == (1, 0.0)
    assert references.error(spec, weight, y[:1], None) == math.inf


class FakePeer:
    """A contender that takes as long and answers as a test wants."""

    exact, sparse, tolerance = True, True, None

    def __init__(self, family: str, variant: str, work: Any):
        self.family, self.variant, self.work = family, variant, work

    def prepare(self, spec: ConvSpec, weight: np.ndarray, device: Any) -> Prepared:
        def bind(x: torch.Tensor) -> Any:
            padding = spec.padding[:2]
            return lambda: self.work(torch.nn.functional.conv2d(x, torch.from_numpy(weight), padding=padding))

        return Prepared(spec, weight, lambda x: x, bind, lambda y: y, weight.nbytes, "a detail")


class FakeClock(gpu_clock.CpuClock):
    """Every call takes 10 us."""

    def capture(self, calls: Any) -> Any:
        def replay() -> None:
            calls[0]()

        replay.calls = len(calls)
        return replay

    def round_us(self, replays: Any, cold: bool) -> list[float]:
        for replay in replays:
            replay()
        return [10.0 * getattr(replay, "calls", 1) for replay in replays]


def raise_(error: Exception) -> Any:
    raise error


def settings(tmp_path: Path, **changes: Any) -> table2_entries.Settings:
    plain = {"peers": ("fake",), "rounds": 8, "seconds": 1, "seed": 0, "escort_library": "", "on_gpu": False}
    return table2_entries.Settings(**{**plain, "progress": str(tmp_path / "progress"), **changes})


def run_case(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, peers: list[FakePeer], **skipped: str) -> Case:
    monkeypatch.setattr(table2_entries, "all_peers", lambda library: peers)
    monkeypatch.setattr(table2_case, "CpuClock", FakeClock)
    return table2_case.bench_case(2, 1, (0.5, 0.1), [], settings(tmp_path), skipped)


def test_a_failing_contender_costs_only_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    peers = [
        FakePeer("fake", "good", lambda y: y),
        FakePeer("fake", "wrong", lambda y: y + 1e-4),
        FakePeer("fake", "raises", lambda y: raise_(MemoryError("no memory"))),
        FakePeer("fake", "unserved", lambda y: raise_(NotServed("not mine"))),
        FakePeer("fake", "unwritten", lambda y: torch.full_like(y, math.nan)),
        FakePeer("other", "unwanted", lambda y: y),
        FakePeer("fake", "broken", lambda y: y),
    ]
    case = run_case(monkeypatch, tmp_path, peers, **{"fake broken 0.5": "crashed", "fake broken 0.1": "crashed"})
    found = {(each.variant, each.density): each for each in case.contenders}
    assert len(found) == 12 and all(density in (0.5, 0.1) for _, density in found)
    status = {variant: each.status for (variant, _), each in found.items()}
    assert status == {
        "good": "ok",
        "wrong": "wrong",
        "raises": "failed",
        "unserved": "not served",
        "unwritten": "wrong",
        "broken": "failed",
    }
    assert "no memory" in found["raises", 0.1].cause and found["broken", 0.5].cause == "crashed"
    assert found["wrong", 0.1].error > 1 and found["unwritten", 0.1].error is None
    good = found["good", 0.1]
    assert good.cold_us == (10.0,) * 8 and good.warm_us == (10.0,) * 3 and good.final
    assert good.detail == "a detail" and 0 <= good.error <= 1


def test_a_contender_that_breaks_the_process_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    peers = [FakePeer("fake", "good", lambda y: y), FakePeer("fake", "bad", lambda y: raise_(RuntimeError("illegal")))]

    def broken(self: Any) -> None:
        if (tmp_path / "progress").read_text().startswith("fake bad"):
            raise RuntimeError("unspecified launch failure")

    monkeypatch.setattr(FakeClock, "synchronize", broken)
    with pytest.raises(table2_case.Broken) as caught:
        run_case(monkeypatch, tmp_path, peers)
    assert caught.value.contender == "fake bad 0.5" and "illegal" in caught.value.cause
    monkeypatch.setattr(FakeClock, "synchronize", lambda self: None)
    monkeypatch.setattr(FakeClock, "capture", lambda self, calls: raise_(gpu_clock.CaptureError("not captured")))
    with pytest.raises(table2_case.Broken, match="fake good"):
        run_case(monkeypatch, tmp_path, peers)


def test_far_variants_leave_after_the_pilot(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Slow(FakeClock):
        def round_us(self, replays: Any, cold: bool) -> list[float]:
            where = (tmp_path / "progress").read_text()
            return [
                each * (1.05 if "close" in where else 2 if "far" in where else 1)
                for each in super().round_us(replays, cold)
            ]

    monkeypatch.setattr(sys.modules[__name__], "FakeClock", Slow)
    peers = [FakePeer("fake", variant, lambda y: y) for variant in ("near", "close", "far")]
    case = run_case(monkeypatch, tmp_path, peers)
    assert {(each.variant, each.final, len(each.cold_us)) for each in case.contenders} == {
        ("near", True, 8),
        ("close", True, 8),
        ("far", False, table2_case.PILOT_ROUNDS),
    }


def test_a_broken_contender_is_left_out_of_what_follows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Runner:
        ended = 0

        def call(
            self, function: Any, operator: int, batch: int, densities: Any, ours: Any, _: Any, skipped: Any
        ) -> Case:
            if operator == 3:
                raise RuntimeError("no memory for the inputs")
            if "cudnn" not in skipped:
                raise table2_case.Broken("cudnn", "illegal address")
            assert "operator 1, batch 64: illegal address" in skipped["cudnn"]
            return make_case(operator, batch, tuple(densities))

        def end(self) -> None:
            self.ended += 1

    runner, options = Runner(), type("Options", (), {"deadline": math.inf, "density": [0.1], "seconds": 0})
    cases = list(bench_table2.run_cases([(1, 64), (3, 64), (2, 64)], {}, settings(tmp_path), options, runner))
    assert [case.operator for case in cases] == [1, 2] and runner.ended == 2
    printed = capsys.readouterr().out
    assert "operator 1, batch 64: cudnn broke the process" in printed
    assert "operator 3, batch 64: nobody known broke the process: no memory for the inputs" in printed
    line = bench_table2.line(cases[0])
    assert "op 1 b64 d0.1: 100 us (folded_cuda:async); fp32 4.00x faster; TF32 0.95x slower" in line
    assert "escort-prepadded 0.1: failed, why" in line


def test_a_process_that_dies_is_replaced() -> None:
    with gpu_runner.Runner() as runner:
        first = runner.call(os.getpid)
        with pytest.raises(BrokenProcessPool):
            runner.call(os._exit, 3)
        runner.end()
        assert runner.call(os.getpid) not in (first, os.getpid())


def test_kernels_come_from_the_log_or_are_defaults(tmp_path: Path) -> None:
    target = environment.resolve_target({"kind": "cuda", "arch": "sm_90"})
    log = TuningLog(tmp_path / "log.jsonl")
    log.append(make_record(50, 40))
    found = table2_kernels.wanted((6, 64), (0.5, 0.1), 0, ["dense_cuda", "csr_cuda"], log, target)
    assert [(each.family, each.density) for each in found] == [
        (OURS, 0.5),
        (f"{OURS} dense_cuda", 0.5),
        (f"{OURS} csr_cuda", 0.5),
        (OURS, 0.1),
        (f"{OURS} csr_cuda", 0.1),
    ]
    whys = [[choice.why for choice in each.choices] for each in found]
    assert whys[0] == ["transferred from density 0.1", "default decisions", "default decisions"]
    assert whys[3] == ["tuned for these weights"]
    assert not found[1].sparse and found[0].sparse
    (default,) = table2_kernels.wanted((6, 1), (0.1,), 0, [], log, target)
    assert default.choices == tuple(table2_kernels.Choice(name, None, "default decisions") for name in SPARSE)
    with pytest.raises(UsageError, match="no_cuda"):
        table2_kernels.wanted((6, 1), (0.1,), 0, ["no_cuda"], log, target)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc on PATH to compile CUDA code")
def test_code_size_is_that_of_the_kernels(tmp_path: Path) -> None:
    """A fatbin inside other bytes, as in a shared library; straight-line code of so many multiply-adds is long."""
    adds = "".join(f"b = a * {i}.5f + b; a = a * b;" for i in range(500))
    (tmp_path / "a.cu").write_text(f"__global__ void f(float* x) {{ float a = x[0], b = 1; {adds} x[1] = b; }}")
    command = ["nvcc", "-fatbin", "-arch=sm_90", "-o", "a.fatbin", "a.cu"]
    subprocess.run(command, cwd=tmp_path, check=True)
    size = cubin.code_bytes(tmp_path / "a.fatbin")
    assert 16 * 900 < size < 16 * 1300
    (tmp_path / "b").write_bytes(b"\x7fELF\x02\x01 and more" + (tmp_path / "a.fatbin").read_bytes() + b"\0" * 99)
    assert cubin.code_bytes(tmp_path / "b") == size
    assert cubin.code_bytes(tmp_path / "a.cu") is None


@pytest.mark.slow
def test_a_trial_run_on_the_cpu(tmp_path: Path) -> None:
    """The whole benchmark, processes and all, and its report."""
    results = tmp_path / "results.json.xz"
    words = ["--target", "llvm", "--operators", "2", "--batch", "1", "--density", "0.05", "--workers", "1"]
    words += ["--peers", "cudnn-fp32,im2col-cu,half-both-fp32,escort", "-o", str(results)]
    command = [sys.executable, str(SCRIPTS / "bench_table2.py"), *words]
    # Threads that wait busily for each other take longer than the work.
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=variables)
    assert done.returncode == 0, done.stdout + done.stderr
    (case,) = Document.load(results).runs[0].cases
    status: dict[str, set[str]] = {}
    for each in case.contenders:
        status.setdefault(each.status, set()).add(each.family)
        assert each.status != "ok" or (each.cold_us and 0 <= each.error <= 1)
    assert status["not served"] == {"escort", "escort-prepadded"}
    assert {OURS, "cudnn-fp32", "im2col-cusparse", "half-both-fp32"} <= status["ok"]
    assert set(status) == {"ok", "not served"}
    assert "op 2 b1 d0.05: " in done.stdout
    words = [str(results), "--name", "trial", "--results", str(tmp_path), "--no-html"]
    command = [sys.executable, str(SCRIPTS / "report_table2.py"), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stderr.endswith("found 0.1; allowed: 0.05\n")
    done = subprocess.run([*command, "--density", "0.05"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "default decisions" in (tmp_path / "trial.md").read_text()


@pytest.mark.gpu
def test_graphs_are_timed() -> None:
    """A replay holds all its calls, and a large copy is slower than a small one."""
    clock = gpu_clock.GpuClock()
    small, large = (torch.ones(size, device=clock.device) for size in (1 << 10, 1 << 26))
    total = torch.zeros(1 << 10, device=clock.device)
    with clock.running():
        total.add_(small)
        total.zero_()
        replay = clock.capture([lambda: total.add_(small)] * 5)
        replay()
        clock.synchronize()
        assert (total == 5).all()
        times = clock.round_us([clock.capture([each.clone] * 2) for each in (small, large)], cold=True)
    # 2 x 2 x 256 MiB at 5 TB/s at most.
    assert 0 < times[0] < times[1] and times[1] > 200
