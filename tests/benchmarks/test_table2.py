"""The GPU benchmark of Table 2 without a GPU: references, contenders, kernels, and a trial run on the CPU."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import math
import os
import runpy
import shutil
import subprocess
import sys
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from table2_made import make_case, make_record, with_cold_code

from benchmarks import operators, references
from benchmarks.baselines import Baseline, NotServed, Prepared
from benchmarks.gpu import (
    case,
    code_evictor,
    code_size,
    cold_code_clock,
    contenders,
    cuda_graph_clock,
    isolated_process,
    kernels,
    suite,
)
from benchmarks.results import OURS, Case, Document
from tvm_sparse.conv import reference
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.errors import UsageError
from tvm_sparse.logs.tuning_log import TuningLog
from tvm_sparse.target.resolve import resolve_target

SCRIPTS = Path(__file__).parents[2] / "scripts" / "table2"
SPARSE = ("folded_cuda", "slice_cuda", "plane_cuda", "data_cuda", "csr_cuda")


def test_errors_are_fractions_of_what_is_allowed() -> None:
    """The element-wise bound, or a fraction of the largest value; a dead filter allows nothing."""
    spec = ConvSpec(3, 4, 9, 7, 6, 3, 2, stride=(2, 1), padding=(1, 0, 2, 1), dilation=(1, 2), groups=2)
    x = reference.random_arguments(spec, 3)["x"]
    weight = np.random.default_rng(4).standard_normal(spec.weight_shape).astype(np.float32)
    weight[0] = 0
    wanted, found = reference.reference(spec, x, weight), references.References(torch.from_numpy(x))
    y = wanted.value.astype(np.float32) + wanted.bound.max().astype(np.float32) / 3
    y[:, 0] = 0
    ends = reference.Reference(wanted.value[[0, -1]], wanted.bound[[0, -1]])
    assert found.error(spec, weight, torch.from_numpy(y), None) == pytest.approx(ends.worst(y[[0, -1]]))
    largest = abs(wanted.value[[0, -1]]).max()
    difference = abs(y - wanted.value)[[0, -1]].max()
    assert found.error(spec, weight, torch.from_numpy(y), 0.5) == pytest.approx(difference / largest / 0.5)
    y[0, 0, 0, 0] = 1e-30
    assert found.error(spec, weight, torch.from_numpy(y), None) == math.inf
    y[0, 0, 0, 0] = np.nan
    assert found.error(spec, weight, torch.from_numpy(y), 1.0) == math.inf
    assert references.error_of(y, wanted, 1.0) == references.error_of(y, wanted, None) == math.inf


def test_every_image_must_be_written() -> None:
    spec = ConvSpec(3, 2, 6, 6, 2, 3, 3)
    weight = np.ones(spec.weight_shape, np.float32)
    x = torch.ones(spec.input_shape)
    found = references.References(x)
    y = torch.full(spec.output_shape, 18.0)
    assert found.error(spec, weight, y, None) == 0
    for image, value in itertools.product(range(3), (math.nan, 0.0)):
        wrong = y.clone()
        wrong[image, 0, 0, 0] = value
        # Of the images between the first and the last only that they are written is seen.
        assert found.error(spec, weight, wrong, None) > 1 or (image, value) == (1, 0.0)
    assert found.error(spec, weight, y[:1], None) == math.inf


def fake(family: str, variant: str, work: Any) -> Baseline:
    """A contender that takes as long and answers as a test wants."""

    def prepare(spec: ConvSpec, weight: np.ndarray, device: Any) -> Prepared:
        def bind(x: torch.Tensor) -> Any:
            padding = spec.padding[:2]
            return lambda: work(torch.nn.functional.conv2d(x, torch.from_numpy(weight), padding=padding))

        return Prepared(spec, weight, lambda x: x, bind, lambda y: y, weight.nbytes, "a detail")

    return Baseline(family, variant, prepare, sparse=True)


class FakeClock(cuda_graph_clock.CpuClock):
    """Every call takes 10 us."""

    def capture(self, calls: Any) -> Any:
        def replay() -> None:
            calls[0]()

        replay.calls = len(calls)
        return replay

    def times_us(self, replays: Any) -> list[float]:
        for replay in replays:
            replay()
        return [10.0 * getattr(replay, "calls", 1) for replay in replays]


def raise_(error: Exception) -> Any:
    raise error


def settings(tmp_path: Path, **changes: Any) -> contenders.Settings:
    plain = {"baselines": ("fake",), "rounds": 8, "seconds": 1, "seed": 0, "escort_library": None, "on_gpu": False}
    plain["cold_code"] = True
    return contenders.Settings(**{**plain, "progress": str(tmp_path / "progress"), **changes})


def run_case(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, baselines: list[Baseline], **skipped: str) -> Case:
    monkeypatch.setattr(contenders, "all_baselines", lambda library: baselines)
    monkeypatch.setattr(case, "CpuClock", FakeClock)
    return case.bench_case(2, 1, (0.5, 0.1), [], settings(tmp_path), skipped)


def test_a_failing_contender_costs_only_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    baselines = [
        fake("fake", "good", lambda y: y),
        fake("fake", "wrong", lambda y: y + 1e-4),
        fake("fake", "raises", lambda y: raise_(MemoryError("no memory"))),
        fake("fake", "unserved", lambda y: raise_(NotServed("not mine"))),
        fake("fake", "unwritten", lambda y: torch.full_like(y, math.nan)),
        fake("other", "unwanted", lambda y: y),
        fake("fake", "broken", lambda y: y),
    ]
    result = run_case(monkeypatch, tmp_path, baselines, **{"fake broken 0.5": "crashed", "fake broken 0.1": "crashed"})
    found = {(each.variant, each.density): each for each in result.contenders}
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
    # A row of evictors and calls, less one of evictors.
    assert good.cold_code_us == (10.0,) * 8 and not found["wrong", 0.1].cold_code_us
    assert good.detail == "a detail" and 0 <= good.error <= 1


def test_a_contender_that_breaks_the_process_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    baselines = [fake("fake", "good", lambda y: y), fake("fake", "bad", lambda y: raise_(RuntimeError("illegal")))]

    def broken(self: Any) -> None:
        if (tmp_path / "progress").read_text().startswith("fake bad"):
            raise RuntimeError("unspecified launch failure")

    monkeypatch.setattr(FakeClock, "synchronize", broken)
    with pytest.raises(case.Broken) as caught:
        run_case(monkeypatch, tmp_path, baselines)
    assert caught.value.contender == "fake bad 0.5" and "illegal" in caught.value.cause
    monkeypatch.setattr(FakeClock, "synchronize", lambda self: None)
    monkeypatch.setattr(FakeClock, "capture", lambda self, calls: raise_(cuda_graph_clock.CaptureError("not captured")))
    with pytest.raises(case.Broken, match="fake good"):
        run_case(monkeypatch, tmp_path, baselines)


def test_far_variants_leave_after_the_pilot(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Slow(FakeClock):
        def round_us(self, replays: Any, cold: bool) -> list[float]:
            where = (tmp_path / "progress").read_text()
            return [
                each * (1.05 if "close" in where else 2 if "far" in where else 1)
                for each in super().round_us(replays, cold)
            ]

    monkeypatch.setattr(sys.modules[__name__], "FakeClock", Slow)
    baselines = [fake("fake", variant, lambda y: y) for variant in ("near", "close", "far")]
    found = run_case(monkeypatch, tmp_path, baselines)
    rounds = {(each.variant, each.final, len(each.cold_us), len(each.cold_code_us)) for each in found.contenders}
    assert rounds == {("near", True, 8, 8), ("close", True, 8, 8), ("far", False, case.PILOT_ROUNDS, 0)}


def test_cold_code_is_left_out_where_nobody_asks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(contenders, "all_baselines", lambda library: [fake("fake", "good", lambda y: y)])
    monkeypatch.setattr(case, "CpuClock", FakeClock)
    found = case.bench_case(2, 1, (0.5,), [], settings(tmp_path, cold_code=False), {})
    assert [(len(each.cold_us), each.cold_code_us) for each in found.contenders] == [(8, ())]


def test_an_evictor_runs_ahead_of_each_call_and_is_taken_off() -> None:
    ran: list[str] = []

    class Counting(cuda_graph_clock.CpuClock):
        """An evictor takes 100 us, a call 7."""

        def times_us(self, replays: Any) -> list[float]:
            ran.append("timed:")
            times = []
            for replay in replays:
                start = len(ran)
                replay()
                times.append(sum(100.0 if each.startswith("evict") else 7.0 for each in ran[start:]))
            return times

        def displace_data(self) -> None:
            ran.append("displace")

    clock = cold_code_clock.ColdCodeClock(Counting(), lambda turn: ran.append(f"evict{turn}"))
    calls = [lambda number=number: ran.append(f"call{number}") for number in range(40)]
    three = clock.capture(calls[:3])
    assert three.number == 2 and clock.round_us([three]) == [14.0]
    first, evictors = ["displace", "evict1", "call0"], ["evict0", "evict1"]
    assert ran == [*first, "timed:", *evictors, "evict0", "call1", "evict1", "call2"]
    one, many = clock.capture(calls[:1]), clock.capture(calls)
    # A single call is repeated; of many, those beyond the limit are left out.
    assert (one.number, many.number) == (1, cold_code_clock.MAX_CALLS)
    assert clock.round_us([one, many]) == [7.0, 7.0 * cold_code_clock.MAX_CALLS]


def test_a_broken_contender_is_left_out_of_what_follows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Runner:
        ended = 0

        def call(
            self, function: Any, operator: int, batch: int, densities: Any, ours: Any, _: Any, skipped: Any
        ) -> Case:
            if operator == 3:
                raise RuntimeError("no memory for the inputs")
            if "cudnn" not in skipped:
                raise case.Broken("cudnn", "illegal address")
            assert "operator 1, batch 64: illegal address" in skipped["cudnn"]
            return make_case(operator, batch, tuple(densities))

        def close(self) -> None:
            self.ended += 1

    runner, options = Runner(), type("Options", (), {"deadline": math.inf, "density": [0.1], "seconds": 0})
    cases = list(suite.run_cases([(1, 64), (3, 64), (2, 64)], {}, settings(tmp_path), options, runner))
    assert [case.operator for case in cases] == [1, 2] and runner.ended == 2
    printed = capsys.readouterr().out
    assert "operator 1, batch 64: cudnn broke the process" in printed
    assert "operator 3, batch 64: nobody known broke the process: no memory for the inputs" in printed
    line = suite.line(cases[0])
    assert "op 1 b64 d0.1: 100 us (folded_cuda:async); fp32 4.00x faster; TF32 0.95x slower" in line
    assert "escort-prepadded 0.1: failed, why" in line and "cold code" not in line
    line = suite.line(with_cold_code(cases[0]))
    assert "with cold code: 200 us (folded_cuda:async); fp32 2.50x faster; TF32 0.97x slower" in line


def test_a_process_that_dies_is_replaced() -> None:
    with contextlib.closing(isolated_process.Runner()) as runner:
        first = runner.call(os.getpid)
        with pytest.raises(BrokenProcessPool):
            runner.call(os._exit, 3)
        runner.close()
        assert runner.call(os.getpid) not in (first, os.getpid())


def test_kernels_come_from_the_log_or_are_defaults(tmp_path: Path) -> None:
    target = resolve_target({"kind": "cuda", "arch": "sm_90"})
    log = TuningLog(tmp_path / "log.jsonl")
    log.append(make_record(50, 40))
    found = kernels.wanted((6, 64), (0.5, 0.1), 0, ["dense_cuda", "csr_cuda"], log, target)
    assert [(each.family, each.density) for each in found] == [
        (OURS, 0.5),
        (f"{OURS} dense_cuda", 0.5),
        (f"{OURS} csr_cuda", 0.5),
        (OURS, 0.1),
        (f"{OURS} csr_cuda", 0.1),
    ]
    whys = [[choice.why for choice in each.choices] for each in found]
    assert whys[0] == ["transferred from density 0.1"] + ["default decisions"] * len(SPARSE)
    assert whys[3] == ["tuned for these weights"]
    assert not found[1].sparse and found[0].sparse
    (default,) = kernels.wanted((6, 1), (0.1,), 0, [], log, target)
    assert default.choices == tuple(kernels.Choice(name, None, "default decisions") for name in SPARSE)
    with pytest.raises(UsageError, match="no_cuda"):
        kernels.wanted((6, 1), (0.1,), 0, ["no_cuda"], log, target)


def test_half_precision_is_everybodys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are of that type, weights and inputs have its numbers, and the bound allows what storing them costs."""
    target = resolve_target({"kind": "cuda", "arch": "sm_90"})
    (own,) = kernels.wanted((4, 1), (0.1,), 0, [], TuningLog(tmp_path / "log.jsonl"), target, "float16")
    assert own.spec == replace(operators.spec(4, 1), dtype="float16")
    assert (own.weight == own.weight.astype(np.float16)).all() and (own.weight != operators.weight(4, 0.1)).any()

    def stored(y: torch.Tensor) -> torch.Tensor:
        return y.half().float()

    seen = []

    def prepare(*given: Any) -> Prepared:
        made = fake("fake", "", stored).prepare(*given)
        return replace(made, load=lambda x: seen.append((x, given[1])) or x)

    method = replace(fake("fake", "half", stored), prepare=prepare)
    monkeypatch.setattr(contenders, "all_baselines", lambda library: [method])
    monkeypatch.setattr(case, "CpuClock", FakeClock)
    for dtype, status in ("float16", "ok"), ("float32", "wrong"):
        result = case.bench_case(2, 1, (0.1,), [], settings(tmp_path, dtype=dtype), {})
        assert [each.status for each in result.contenders] == [status]
        assert result.spec.dtype == dtype
        x, weight = seen[-1]
        assert (np.array_equal(x, x.half()), np.array_equal(weight, weight.astype(np.float16))) == 2 * (
            dtype == "float16",
        )


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc on PATH to compile CUDA code")
def test_code_size_is_that_of_the_kernels(tmp_path: Path) -> None:
    """A fatbin inside other bytes, as in a shared library; straight-line code of so many multiply-adds is long."""
    adds = "".join(f"b = a * {i}.5f + b; a = a * b;" for i in range(500))
    (tmp_path / "a.cu").write_text(f"__global__ void f(float* x) {{ float a = x[0], b = 1; {adds} x[1] = b; }}")
    command = ["nvcc", "-fatbin", "-arch=sm_90", "-o", "a.fatbin", "a.cu"]
    subprocess.run(command, cwd=tmp_path, check=True)
    size = code_size.code_bytes(tmp_path / "a.fatbin")
    assert 16 * 900 < size < 16 * 1300
    (tmp_path / "b").write_bytes(b"\x7fELF\x02\x01 and more" + (tmp_path / "a.fatbin").read_bytes() + b"\0" * 99)
    assert code_size.code_bytes(tmp_path / "b") == size
    assert code_size.code_bytes(tmp_path / "a.cu") is None


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc on PATH to compile CUDA code")
@pytest.mark.exhaustive
def test_evictors_are_larger_than_the_caches(tmp_path: Path) -> None:
    """Two kernels of 512 KB each, and little more; a Hopper multiprocessor's caches hold 128 KB, a GPC's 150."""
    library = code_evictor.build(tmp_path, "sm_90")
    assert 2 * 512 << 10 <= code_size.code_bytes(library) < 2 * 520 << 10
    assert hasattr(ctypes.CDLL(str(library)), "evict_code_launch")


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.exhaustive
def test_a_trial_run_on_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], dtype: str
) -> None:
    """The whole benchmark, processes and all, and its report."""
    results = tmp_path / "results.json.xz"
    words = ["--target", "llvm", "--operators", "2", "--batch", "1", "--density", "0.05", "--workers", "1"]
    words += ["--dtype", dtype, "--baselines", "cudnn-fp32,im2col-cu,half-both-fp32,escort", "-o", str(results)]
    command = [sys.executable, str(SCRIPTS / "bench_gpu.py"), *words]
    # Threads that wait busily for each other take longer than the work.
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=variables)
    assert done.returncode == 0, done.stdout + done.stderr
    (case,) = Document.load(results).runs[0].cases
    status: dict[str, set[str]] = {}
    for each in case.contenders:
        status.setdefault(each.status, set()).add(each.family)
        assert each.status != "ok" or (each.cold_us and 0 <= each.error <= 1)
        assert len(each.cold_code_us) >= 7 if each.final else not each.cold_code_us
    assert status["not served"] == {"escort", "escort-prepadded"}
    assert {OURS, "cudnn-fp32", "im2col-cusparse", "half-both-fp32"} <= status["ok"]
    assert set(status) == {"ok", "not served"}
    assert "op 2 b1 d0.05: " in done.stdout and case.spec.dtype == dtype
    words = [str(results), "--name", "trial", "--results", str(tmp_path), "--no-html"]
    for more, code, said in ((), 2, "found 0.1; allowed: 0.05\n"), (["--density", "0.05"], None, ""):
        monkeypatch.setattr(sys, "argv", ["report.py", *words, *more])
        with pytest.raises(SystemExit) as end:
            runpy.run_path(str(SCRIPTS / "report.py"), run_name="__main__")
        assert end.value.code == code and capsys.readouterr().err.endswith(said)
    page = (tmp_path / "trial.md").read_text()
    assert "default decisions" in page and "| all | 1 |" in page.partition("## Cold code\n")[2]


@pytest.mark.gpu
def test_graphs_are_timed() -> None:
    """A replay holds all its calls, and a large copy is slower than a small one."""
    clock = cuda_graph_clock.GpuClock()
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


@pytest.mark.gpu
def test_graphs_are_timed_with_cold_code(tmp_path: Path) -> None:
    """All calls of all graphs run once a round, and what is left without the evictors is more than nothing."""
    major, minor = torch.cuda.get_device_capability()
    clock = cuda_graph_clock.GpuClock()
    total = torch.zeros(1 << 10, device=clock.device)
    with clock.running():
        evictor = code_evictor.CodeEvictor(code_evictor.build(tmp_path, f"sm_{major}{minor}"))
        code_clock = cold_code_clock.ColdCodeClock(clock, evictor)
        total.add_(1).zero_()
        replay = code_clock.capture([lambda: total.add_(1)] * 9)
        assert replay.number == 8
        times = [code_clock.round_us([replay])[0] for _ in range(5)]
        # Of each round: the call that is not timed, and eight.
        assert (total == 5 * 9).all()
        (evictors_us,) = clock.times_us([replay.evictors])
    # An addition takes some microseconds, an evictor tens; other work on the GPU blurs the difference of both.
    assert 0 < sorted(times)[2] / 8 < 50 and 10 < evictors_us / 8 < 1000
