"""Results and records of Table 2 made up for tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from benchmarks import operators
from benchmarks.results import OURS, Case, Contender, Device, Document, Run, TuningCurve
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.logs.record import TuningRecord

H200 = Device(name="NVIDIA H200", arch="sm_90", multiprocessors=132, clock_mhz=1980, l2_bytes=50 << 20, driver="580")
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
    baselines = [
        contender("cudnn-fp32", 400, variant="nchw", warm_us=(390.0,)),
        contender("cudnn-fp32", 440, variant="nhwc", final=False),
        contender("cudnn-tf32", 95, variant="nhwc", warm_us=(94.0,)),
        contender("cudnn-fp16", 50, variant="nhwc"),
        contender("escort", 300, densities[-1]),
        contender("im2col-cusparse", 900, densities[-1], variant="cnhw"),
        replace(contender("escort-prepadded", 1, densities[-1], cold_us=(), final=False), status="failed", cause="why"),
    ]
    return Case(operator=operator, batch=batch, seed=0, calls=8, contenders=(*ours, *baselines), seconds=1.5)


def with_cold_code(case: Case) -> Case:
    """A case in which every contender takes 100 us more with cold code."""
    contenders = (replace(each, cold_code_us=tuple(time + 100 for time in each.cold_us)) for each in case.contenders)
    return replace(case, contenders=tuple(contenders))


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


def make_record(time_us: float | None, second: int, schedule: str = "folded_cuda:a") -> TuningRecord:
    spec, weight = operators.spec(6, 64), operators.weight(6, 0.1)
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
