"""What plots of reports share: colours, figures, axes, bars and SVG texts; matplotlib draws them (extra ``report``)."""

import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

# Distinct for the colour-blind as well (Okabe and Ito).
COLOURS = ("#D55E00", "#0072B2", "#009E73", "#E69F00", "#CC79A7", "#888888", "#56B4E9", "#000000")
COLUMNS = 5
TICKS = (1.0, 2.0, 5.0)
# Inches: the least width of a plot of bars, and what the name of a group needs.
BARS_WIDTH, GROUP_WIDTH = 11.0, 1.05


def speed_bars(
    groups: Sequence[str], speeds: Mapping[str, Sequence[float]], unit: str, ticks: Sequence[float] = TICKS
) -> str:
    """Bars in groups, as SVG: for each label in `speeds` one bar a group, NaN where there is none.

    Speeds are ratios; `unit` says to what, `ticks` are those of a decade. Bars go from 1 up for the faster, down for
    the slower. A label without any bar is left out; the others keep their colours.
    """
    drawn, (axes,) = figure(1, width=max(BARS_WIDTH, GROUP_WIDTH * len(groups)), height=4)
    shown = {
        label: colour for label, colour in zip(speeds, COLOURS, strict=False) if not all(map(math.isnan, speeds[label]))
    }
    width = 0.85 / max(1, len(shown))
    for i, (label, colour) in enumerate(shown.items()):
        places = [group + (i - (len(shown) - 1) / 2) * width for group in range(len(groups))]
        axes.bar(places, [speed - 1 for speed in speeds[label]], width, bottom=1, label=label, color=colour)
    axes.axhline(1, color="black", linewidth=1)
    logarithmic(axes, ticks)
    axes.set_ylabel(unit)
    axes.set_xticks(range(len(groups)), groups)
    if shown:
        axes.legend(fontsize=8, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1))
    return svg(drawn)


def logarithmic(axes: Any, ticks: Sequence[float] = TICKS) -> None:
    """A logarithmic vertical axis with plain numbers, at `ticks` of every decade."""
    from matplotlib.ticker import FuncFormatter, LogLocator

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=ticks))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(FuncFormatter(lambda *_: ""))


def figure(number: int, width: float = 2.8, height: float = 2.6) -> tuple[Any, list[Any]]:
    """A figure of `number` plots of this size side by side, and their axes; those beyond are hidden."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    columns, rows = min(number, COLUMNS), math.ceil(number / COLUMNS)
    size = (width * columns, height * rows)
    made, grid = pyplot.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
    axes = list(grid.flat)
    for each in axes:
        each.grid(axis="y", which="both", linewidth=0.3)
        each.tick_params(labelsize=8)
    for each in axes[number:]:
        each.set_visible(False)
    return made, axes


def svg(drawn: Any) -> str:
    """The figure as an element for a page: letters as text, the same bytes each time."""
    from matplotlib import pyplot

    text = io.StringIO()
    # Names of parts must differ between the figures of a page.
    with pyplot.rc_context({"svg.fonttype": "none", "svg.hashsalt": str(drawn.number)}):
        drawn.savefig(text, format="svg", metadata={"Date": None})
    pyplot.close(drawn)
    return text.getvalue()[text.getvalue().index("<svg") :]
