"""Compare guided with random search at equal trials, from tuning logs; needs no GPU.

    python scripts/tune_table2.py --target cuda --schedules folded_cuda --search-seed 1 -o guided1.jsonl
    python scripts/tune_table2.py --target cuda --schedules folded_cuda --search-seed 1 --search random -o random1.jsonl
    python scripts/tuning_curves.py guided*.jsonl --random random*.jsonl -o curves.json --markdown curves.md

A record does not say which search made it, so each search has logs of its own; each seed too, because what a log knows
is not tried again. Trials of folded kernels count, failed ones too; those of dense and other kernels do not.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# The checkout need not be installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import report_plots
from report_cells import NOTHING, Table
from search_runs import NEAR, Case, cases

from tvm_sparse.errors import TvmSparseError, UsageError

GUIDED, RANDOM = SEARCHES = ("guided", "random")
# Folded trials after which searches are compared.
AFTER = (1, 2, 4, 8, 16, 32, 64)


def comparison(found: Sequence[Case], trials: int) -> dict[str, Any]:
    """Which search is ahead after so many trials, over the cases of which both have made them.

    `guided_ahead` is the share of those cases, None where there are none; `ratios` are geometric means over the cases
    in which both have a kernel by then.
    """
    pairs = [(case.after(GUIDED, trials), case.after(RANDOM, trials)) for case in found]
    both = [(guided, other) for guided, other in pairs if guided is not None and other is not None]
    ahead = sum(guided < other for guided, other in both)
    working = [pair for pair in both if math.inf not in pair]
    means = [math.exp(sum(map(math.log, each)) / len(each)) for each in zip(*working, strict=True)]
    return {
        "trials": trials,
        "cases": len(both),
        "guided": ahead,
        "random": sum(guided > other for guided, other in both),
        "equal": sum(guided == other for guided, other in both),
        "guided_ahead": ahead / len(both) if both else None,
        "ratios": dict(zip(SEARCHES, means, strict=True)) if means else None,
    }


def document(found: Sequence[Case], logs: dict[str, Sequence[Path]]) -> dict[str, Any]:
    """Everything as plain JSON values; ratios and arrivals are None where there is nothing, or no kernel works yet."""
    return {
        "logs": {search: [path.name for path in paths] for search, paths in logs.items()},
        "near": NEAR,
        "comparison": [comparison(found, trials) for trials in AFTER],
        "cases": [
            {
                "name": case.name,
                "convolution": case.spec.key,
                "density": case.density,
                "value_digest": case.value_digest,
                "arch": case.arch,
                "best_us": case.best_us,
                "searches": {search: _search(case, search) for search in SEARCHES if case.searches.get(search)},
            }
            for case in found
        ],
    }


def _search(case: Case, search: str) -> dict[str, Any]:
    runs = case.searches[search]
    return {
        "seeds": [run.seed for run in runs],
        "trials": [len(run.ratios) for run in runs],
        "ratio_after": {str(trials): _finite(case.after(search, trials)) for trials in AFTER},
        "near_after": _finite(case.arrival(search)),
        "seconds": case.seconds(search),
    }


def _finite(value: float | None) -> float | None:
    return None if value is None or math.isinf(value) else float(f"{value:.5g}")


def tables(data: dict[str, Any]) -> list[Table]:
    """What `document` holds, to be read."""
    rows = []
    for each in data["comparison"]:
        if each["cases"]:
            ratios = [_cell(each["ratios"] and each["ratios"][search], ".3f") for search in SEARCHES]
            counts = (str(each[name]) for name in ("trials", "cases", GUIDED, RANDOM, "equal"))
            rows.append((*counts, f"{100 * each['guided_ahead']:.0f}%", *ratios))
    note = (
        "Cases in which the median run of a search has the faster kernel after so many folded trials, and geometric "
        "means of its time over that of the best kernel in all logs."
    )
    header = ("trials", "cases", "guided ahead", "random ahead", "equal", "guided ahead of all", *SEARCHES)
    return [Table("At equal trials", note, header, tuple(rows)), _cases(data)]


def _cases(data: dict[str, Any]) -> Table:
    percent = round(100 * (data["near"] - 1))
    note = (
        "Best time after so many folded trials over the best known, median of the runs; the trial from which it is "
        f"within {percent}%; and seconds from a run's first time stamp to its last, pauses included."
    )
    rows = [
        (
            case["name"],
            f"{case['best_us']:.4g}",
            search,
            str(len(each["seeds"])),
            *(_cell(ratio, ".2f") for ratio in each["ratio_after"].values()),
            _cell(each["near_after"], "g"),
            _cell(each["seconds"], ".0f"),
        )
        for case in data["cases"]
        for search, each in case["searches"].items()
    ]
    header = ("case", "best known us", "search", "runs", *map(str, AFTER), f"within {percent}% after", "seconds")
    return Table("Cases", note, header, tuple(rows))


def _cell(value: float | None, form: str) -> str:
    return NOTHING if value is None else format(value, form)


def markdown(data: dict[str, Any]) -> str:
    """The tables under a heading that names the logs."""
    logs = [f"- {search}: {', '.join(names) or 'none'}" for search, names in data["logs"].items()]
    return "\n".join(["# Guided against random search", "", *logs, "", *(each.markdown() for each in tables(data))])


def svg(found: Sequence[Case]) -> str:
    """One small plot a case: each search's median and, thin, its runs.

    Raises
    ------
    UsageError
        matplotlib is missing.
    """
    try:
        figure, axes = report_plots.small_plots(len(found))
    except ImportError as error:
        raise UsageError("--svg", f"{error.name} is missing", hint="pip install 'tvm-sparse[report]'") from None
    for each, case in zip(axes, found, strict=False):
        for search, colour in zip(SEARCHES, report_plots.COLOURS, strict=False):
            runs = case.searches.get(search, ())
            trials = range(1, max((len(run.ratios) for run in runs), default=0) + 1)
            lines = [(run.ratios, 0.8, None) for run in runs] if len(runs) > 1 else []
            for ratios, width, label in [*lines, ([case.after(search, trial) for trial in trials], 2, search)]:
                drawn = [math.nan if math.isinf(ratio) else ratio for ratio in ratios]
                each.step(trials[: len(drawn)], drawn, where="post", label=label, color=colour, linewidth=width)
        each.set_xscale("log", base=2)
        each.set_title(case.name, fontsize=7)
        each.set_xlabel("folded trials", fontsize=8)
        each.set_ylabel("best over best known", fontsize=8)
    axes[0].legend(fontsize=7)
    return report_plots.svg(figure)


def main() -> int:
    """Write the comparison that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(GUIDED, type=Path, nargs="+", metavar="LOG_GUIDED", help="logs of guided searches")
    parser.add_argument("--random", type=Path, nargs="+", default=[], metavar="LOG_RANDOM", help="logs of random ones")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="JSON", help="file to write")
    parser.add_argument("--markdown", type=Path, metavar="MD", help="tables to write (default: they are printed)")
    parser.add_argument("--svg", type=Path, metavar="SVG", help="plot to write; needs matplotlib")
    options = parser.parse_args()
    logs = {search: getattr(options, search) for search in SEARCHES}
    try:
        twice = {path.resolve() for path in logs[GUIDED]} & {path.resolve() for path in logs[RANDOM]}
        if twice:
            raise UsageError("--random", "a log is of one search", ", ".join(map(str, sorted(twice))), "other files")
        found = cases(logs)
        texts = {options.svg: svg(found)} if options.svg else {}
        data = document(found, logs)
    except TvmSparseError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    texts[options.output] = json.dumps(data, indent=1, allow_nan=False) + "\n"
    if options.markdown:
        texts[options.markdown] = markdown(data)
    else:
        print(markdown(data))
    for path, text in texts.items():
        path.write_text(text)
        print(f"written: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
