"""Plots of the report on Table 2, as SVG texts; matplotlib draws them (extra ``report``)."""

import math
from collections.abc import Sequence

from benchmarks.comparison import CUDNN_FP32, CUDNN_TF32, against, best, median_us
from benchmarks.report.drawing import COLOURS, figure, logarithmic, speed_bars, svg
from benchmarks.report.search_curves import layers
from benchmarks.report.tables import by_batch, cases_at, own_densities, sweeps
from benchmarks.results import OURS, Case, Document, TuningCurve

# Label -> families; bars in this order.
BARS: dict[str, Sequence[str]] = {
    "tvm-sparse (float32)": [OURS],
    "cuDNN TF32": ["cudnn-tf32"],
    "cuDNN float16": ["cudnn-fp16"],
    "cuDNN TF32, half channels and filters": ["half-both-tf32"],
    "Escort": ["escort"],
    "im2col + cuSPARSE": ["im2col-cusparse"],
    "im2col + cuBLAS float32": ["im2col-cublas-fp32"],
}


def plots(document: Document, density: float) -> list[tuple[str, str]]:
    """(title, SVG) of every plot that there are results for."""
    at, swept = by_batch(cases_at(document.cases, density)), by_batch(sweeps(document))
    title = f"Speed against cuDNN in float32, batch {{}}, density {density:g}"
    found = [(title.format(batch), _bars(cases, density)) for batch, cases in at.items()]
    found += [(f"Speed against sparsity, batch {batch}", _sparsity(cases)) for batch, cases in swept.items()]
    if document.tuning:
        found.append(("Best time after so many trials", _trials(document.tuning)))
    return found


def _bars(cases: Sequence[Case], density: float) -> str:
    """Grouped bars, one group an operator."""
    speeds = {label: [_speed(case, families, density) for case in cases] for label, families in BARS.items()}
    return speed_bars([f"op {case.operator}" for case in cases], speeds, "times as fast as cuDNN float32")


def _speed(case: Case, families: Sequence[str], density: float | None = None) -> float:
    found, base = best(case, families, density), best(case, CUDNN_FP32, density)
    if found is None or base is None:
        return math.nan
    return median_us(base) / median_us(found)


def _sparsity(cases: Sequence[Case]) -> str:
    """One small plot an operator: our speed by sparsity, cuDNN's as lines across."""
    drawn, axes = figure(len(cases))
    for each, case in zip(axes, cases, strict=False):
        found = [(density, against(case, density, CUDNN_FP32)) for density in own_densities(case)]
        ratios = {100 * (1 - density): one.ratio for density, one in found if one is not None}
        low, middle, high = ([getattr(ratio, name) for ratio in ratios.values()] for name in ("low", "median", "high"))
        each.fill_between(list(ratios), low, high, color=COLOURS[0], alpha=0.3)
        each.plot(list(ratios), middle, marker="o", markersize=3, color=COLOURS[0], label=OURS)
        each.axhline(1, color="black", linewidth=1, label="cuDNN float32")
        each.axhline(_speed(case, CUDNN_TF32), color=COLOURS[1], label="cuDNN, TF32 allowed")
        logarithmic(each)
        each.set_title(f"op {case.operator}", fontsize=9)
        each.set_xlabel("sparsity, %", fontsize=8)
        each.set_ylabel("times cuDNN float32", fontsize=8)
    axes[0].legend(fontsize=7)
    return svg(drawn)


def _trials(curves: Sequence[TuningCurve]) -> str:
    """One small plot a layer, one line a way of choosing candidates."""
    found = layers(curves)
    labels = sorted({curve.label for curve in curves})
    drawn, axes = figure(len(found))
    for each, layer in zip(axes, found, strict=False):
        for curve in layer:
            times = [math.nan if time_us is None else time_us for time_us in curve.best_us]
            colour = COLOURS[labels.index(curve.label) % len(COLOURS)]
            each.step(range(1, len(times) + 1), times, where="post", label=curve.label, color=colour)
        each.set_title(f"op {layer[0].operator}, batch {layer[0].batch}, density {layer[0].density:g}", fontsize=8)
        each.set_xlabel("trials", fontsize=8)
        each.set_ylabel("best us", fontsize=8)
        each.legend(fontsize=7)
    return svg(drawn)
