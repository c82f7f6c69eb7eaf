"""Draw the plot of the README from results: how many times faster, by density, on a CPU and on a GPU.

    python scripts/table2/plot_speedup.py

Reads ``table2-znver3.json.xz`` of `bench_cpu.py` and ``table2-h200.json.xz`` of `bench_gpu.py` in docs/results; writes
docs/images/speedup.svg. A line is the geometric mean over operators of one kind, its band goes from the least to the
largest of them, and a dot marks the break-even; where one density alone was measured, a bar stands for the band.
Ratios are against the fastest dense library of the same run: oneDNN or ONNX Runtime, and cuDNN with TF32 allowed.
Needs matplotlib (extra ``report``).
"""

import argparse
import io
import json
import lzma
import re
from collections.abc import Mapping
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import command_line

from benchmarks.comparison import CUDNN_TF32, against, crossing
from benchmarks.cpu_contenders import BASELINES, OURS
from benchmarks.report.drawing import COLOURS
from benchmarks.results import Document
from tvm_sparse.measure.quartiles import Quartiles
from tvm_sparse.measure.timing import speedup

PLOT = command_line.RESULTS.parent / "images" / "speedup.svg"
# Label -> operators of Table 2.
KINDS = {
    "few input channels (operators 1, 2, 3, 8)": (1, 2, 3, 8),
    "5x5, 32 input channels (4, 5)": (4, 5),
    "3x3, 64 input channels and more (6, 7, 9, 10)": (6, 7, 9, 10),
}
# Kind -> how far to the side its bar stands where others are measured at the same density.
BESIDE = dict(zip(KINDS, (0.92, 1, 1.09), strict=True))
# Labels of break-evens that are less far apart than this factor would cover each other.
NEAR = 1.5
# Operator -> density -> times faster.
Ratios = dict[int, dict[float, float]]


def cpu_ratios(document: Mapping[str, Any]) -> Ratios:
    """Against the fastest of oneDNN and ONNX Runtime, of a result of `bench_cpu.py` for one number of threads."""
    found: Ratios = {}
    for case in document["runs"][0]["cases"]:
        if "times_us" in case:
            times = case["times_us"]
            fastest = min(BASELINES, key=lambda name: Quartiles.of(times[name]).median)
            found.setdefault(case["operator"], {})[case["density"]] = speedup(times[OURS], times[fastest]).median
    return found


def gpu_ratios(document: Document, batch: int) -> Ratios:
    """Against cuDNN, TF32 allowed, both with cold data."""
    found: Ratios = {}
    for case in document.cases:
        for density in case.densities if case.batch == batch else ():
            one = against(case, density, CUDNN_TF32)
            if one is not None:
                found.setdefault(case.operator, {})[density] = one.ratio.median
    return found


def lines(ratios: Ratios) -> dict[str, dict[float, list[float]]]:
    """Kind of operator -> density, ascending -> ratios of all operators of the kind that were measured.

    Densities at which one of them was not measured are left out.
    """
    found = {}
    for kind, operators in KINDS.items():
        of_kind = [ratios[operator] for operator in operators if operator in ratios]
        shared = sorted(set.intersection(*map(set, of_kind))) if of_kind else []
        found[kind] = {density: [each[density] for each in of_kind] for density in shared}
    return {kind: line for kind, line in found.items() if line}


def break_even(line: Mapping[float, list[float]]) -> float | None:
    """Up to which density the geometric mean is above 1; None where it is at all densities, or at none."""
    word, density = crossing((density, geometric_mean(ratios)) for density, ratios in line.items())
    return density if word == "below" else None


def draw(panels: Mapping[str, Ratios]) -> str:
    """One plot a panel, side by side, as SVG; the same bytes each time."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

    figure, grid = pyplot.subplots(
        1, len(panels), figsize=(3.3 * len(panels), 3.4), squeeze=False, sharex=True, sharey=True, layout="constrained"
    )
    densities = sorted({density for ratios in panels.values() for each in ratios.values() for density in each})
    for axes, (title, ratios) in zip(grid.flat, panels.items(), strict=True):
        axes.set(xscale="log", yscale="log", xlabel="density (share of weights left)")
        axes.set_title(title, fontsize=10)
        axes.axhline(1, color="black", linewidth=1)
        labelled: list[float] = []
        for colour, (kind, line) in zip(COLOURS, lines(ratios).items(), strict=False):
            low, mean, high = ([of(each) for each in line.values()] for of in (min, geometric_mean, max))
            if len(line) == 1:
                places = [density * BESIDE[kind] for density in line]
                axes.vlines(places, low, high, color=colour, alpha=0.3, linewidth=5)
                axes.plot(places, mean, color=colour, marker="o", linestyle="", markersize=5, label=kind)
                continue
            axes.fill_between(list(line), low, high, color=colour, alpha=0.15, linewidth=0)
            axes.plot(list(line), mean, color=colour, marker=".", markersize=4, label=kind)
            density = break_even(line)
            if density is not None:
                axes.plot([density], [1], color=colour, marker="o", markersize=8, markeredgecolor="black")
                is_free = all(max(density, each) > NEAR * min(density, each) for each in labelled)
                place = (4, 6) if is_free else (-25, -14)
                axes.annotate(f"{density:.2f}", (density, 1), place, textcoords="offset points", fontsize=9)
                labelled.append(density)
        axes.xaxis.set_major_locator(FixedLocator(densities))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_major_locator(FixedLocator([0.1, 0.2, 0.5, 1, 2, 5, 10, 20]))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_minor_locator(NullLocator())
            axis.set_minor_formatter(NullFormatter())
        axes.tick_params(labelsize=8)
        axes.grid(linewidth=0.3)
    grid.flat[0].set_ylabel("times as fast as the dense library")
    handles, labels = grid.flat[-1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize=9, frameon=False)
    text = io.StringIO()
    with pyplot.rc_context({"svg.fonttype": "none", "svg.hashsalt": "speedup"}):
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    pyplot.close(figure)
    # Two digits behind the point are a hundredth of a pixel's width.
    return re.sub(r"(\d\.\d\d)\d+", r"\1", re.sub(r"\n *", "\n", text.getvalue()))


def main() -> None:
    """Draw what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpu", type=Path, default=command_line.RESULTS / "table2-znver3.json.xz")
    parser.add_argument("--gpu", type=Path, default=command_line.RESULTS / "table2-h200.json.xz")
    parser.add_argument("-o", "--output", type=Path, default=PLOT, help="SVG file (default: docs/images/speedup.svg)")
    options = parser.parse_args()
    cpu, gpu = json.loads(lzma.decompress(options.cpu.read_bytes())), Document.load(options.gpu)
    panels = {f"CPU, {cpu['fingerprint']['arch']}, one thread, batch 1": cpu_ratios(cpu)}
    panels |= {f"GPU, {gpu.runs[0].device.name}, batch {batch}": gpu_ratios(gpu, batch) for batch in (1, 64)}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(draw(panels))
    print(f"written: {options.output}")


if __name__ == "__main__":
    command_line.end_as(main)
