"""Plots of the report on Table 2, as SVG texts; matplotlib draws them (extra ``report``)."""

import io
import math
from collections.abc import Sequence
from typing import Any

from tvm_sparse.benchmarks.comparison import CUDNN_FP32, CUDNN_TF32, against, best, median_us
from tvm_sparse.benchmarks.report.search_curves import layers
from tvm_sparse.benchmarks.report.tables import by_batch, cases_at, own_densities, sweeps
from tvm_sparse.benchmarks.results import OURS, Case, Document, TuningCurve

# Distinct for the colour-blind as well (Okabe and Ito).
COLOURS = ("#D55E00", "#0072B2", "#009E73", "#E69F00", "#CC79A7", "#888888", "#56B4E9", "#000000")
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
COLUMNS = 5


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
    figure, (axes,) = _figure(1, width=11, height=4)
    width = 0.85 / len(BARS)
    for i, (label, families) in enumerate(BARS.items()):
        heights = [_speed(case, families, density) for case in cases]
        places = [group + (i - (len(BARS) - 1) / 2) * width for group in range(len(cases))]
        # From 1 up for the faster, down for the slower.
        axes.bar(places, [height - 1 for height in heights], width, bottom=1, label=label, color=COLOURS[i])
    axes.axhline(1, color="black", linewidth=1)
    _logarithmic(axes)
    axes.set_ylabel("times as fast as cuDNN float32")
    axes.set_xticks(range(len(cases)), [f"op {case.operator}" for case in cases])
    axes.legend(fontsize=8, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1))
    return _svg(figure)


def _speed(case: Case, families: Sequence[str], density: float | None = None) -> float:
    found, base = best(case, families, density), best(case, CUDNN_FP32, density)
    if found is None or base is None:
        return math.nan
    return median_us(base) / median_us(found)


def _sparsity(cases: Sequence[Case]) -> str:
    """One small plot an operator: our speed by sparsity, cuDNN's as lines across."""
    figure, axes = _figure(len(cases))
    for each, case in zip(axes, cases, strict=False):
        found = [(density, against(case, density, CUDNN_FP32)) for density in own_densities(case)]
        ratios = {100 * (1 - density): one.ratio for density, one in found if one is not None}
        low, middle, high = ([getattr(ratio, name) for ratio in ratios.values()] for name in ("low", "median", "high"))
        each.fill_between(list(ratios), low, high, color=COLOURS[0], alpha=0.3)
        each.plot(list(ratios), middle, marker="o", markersize=3, color=COLOURS[0], label=OURS)
        each.axhline(1, color="black", linewidth=1, label="cuDNN float32")
        each.axhline(_speed(case, CUDNN_TF32), color=COLOURS[1], label="cuDNN, TF32 allowed")
        _logarithmic(each)
        each.set_title(f"op {case.operator}", fontsize=9)
        each.set_xlabel("sparsity, %", fontsize=8)
        each.set_ylabel("times cuDNN float32", fontsize=8)
    axes[0].legend(fontsize=7)
    return _svg(figure)


def _trials(curves: Sequence[TuningCurve]) -> str:
    """One small plot a layer, one line a way of choosing candidates."""
    found = layers(curves)
    labels = sorted({curve.label for curve in curves})
    figure, axes = _figure(len(found))
    for each, layer in zip(axes, found, strict=False):
        for curve in layer:
            times = [math.nan if time_us is None else time_us for time_us in curve.best_us]
            colour = COLOURS[labels.index(curve.label) % len(COLOURS)]
            each.step(range(1, len(times) + 1), times, where="post", label=curve.label, color=colour)
        each.set_title(f"op {layer[0].operator}, batch {layer[0].batch}, density {layer[0].density:g}", fontsize=8)
        each.set_xlabel("trials", fontsize=8)
        each.set_ylabel("best us", fontsize=8)
        each.legend(fontsize=7)
    return _svg(figure)


def _logarithmic(axes: Any) -> None:
    """A logarithmic vertical axis with plain numbers."""
    from matplotlib.ticker import FuncFormatter, LogLocator

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(FuncFormatter(lambda *_: ""))


def _figure(number: int, width: float = 2.8, height: float = 2.6) -> tuple[Any, list[Any]]:
    """A figure of `number` plots of this size side by side, and their axes; those beyond are hidden."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    columns, rows = min(number, COLUMNS), math.ceil(number / COLUMNS)
    size = (width * columns, height * rows)
    figure, grid = pyplot.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
    axes = list(grid.flat)
    for each in axes:
        each.grid(axis="y", which="both", linewidth=0.3)
        each.tick_params(labelsize=8)
    for each in axes[number:]:
        each.set_visible(False)
    return figure, axes


def _svg(figure: Any) -> str:
    """The figure as an element for a page: letters as text, the same bytes each time."""
    from matplotlib import pyplot

    text = io.StringIO()
    # Names of parts must differ between the figures of a page.
    with pyplot.rc_context({"svg.fonttype": "none", "svg.hashsalt": str(figure.number)}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    pyplot.close(figure)
    return text.getvalue()[text.getvalue().index("<svg") :]
