"""The report of `study_pruning.py`: its runs as one document, tables and a plot."""

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from tvm_sparse.frontend.optional_imports import require

# Points of accuracy that a network may lose, for which tables name the sparsest and the fastest.
ALLOWED = (1.0, 2.0)
# Accuracies of a point, in float32 and in eight bits.
KINDS = ("accuracy", "int8")
# Of curves, and of the axis of losses.
MARKERS, TICKS = "osD^v<>Pp*hX+", (0, 1, 2, 5, 10, 20, 50)
# Fastest first, each with the loss that it has at most.
Front = list[dict[str, Any]]


def document(runs: list[dict], options: Any, times: dict[str, dict]) -> dict[str, Any]:
    """All that is known: options, runs, what each pattern loses at each sparsity, and with times the Pareto fronts."""
    patterns = [each for each in options.patterns if any(run["pattern"] == each for run in runs)]
    dense = {run["seed"]: _mean(point["accuracy"] for point in run["points"]) for run in runs if _is_dense(run)}
    losses = {each: _losses(runs, each, dense) for each in patterns if each != "dense"}
    in_bytes = {each: rows for each in patterns if (rows := _losses(runs, each, dense, "int8"))}
    accuracies = [
        {
            **{key: run[key] for key in ("seed", "pattern")},
            **{kind: found for kind in KINDS if (found := [each[kind] for each in run["points"] if kind in each])},
        }
        for run in runs
    ]
    return {
        "command": "python scripts/models/study_pruning.py",
        "options": asdict(options),
        "dense_accuracy": {str(seed): round(value, 5) for seed, value in dense.items()},
        "losses": losses,
        **({"int8_losses": in_bytes} if in_bytes else {}),
        "times_us": times,
        "fronts": {network: front(points(losses, table)) for network, table in times.items()},
        "runs": accuracies,
    }


def runs_of(found: dict[str, Any]) -> list[dict]:
    """The runs of a document, as far as it keeps them."""
    amounts = found["options"]["amounts"]
    return [
        {
            **{key: run[key] for key in ("seed", "pattern")},
            "points": [
                {"amount": amount, **dict(zip([kind for kind in KINDS if kind in run], values, strict=True))}
                for amount, *values in zip(amounts, *(run[kind] for kind in KINDS if kind in run), strict=False)
            ],
        }
        for run in found["runs"]
    ]


def _is_dense(run: dict) -> bool:
    return bool(run["pattern"] == "dense")


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


def _losses(runs: list[dict], pattern: str, dense: dict[int, float], kind: str = "accuracy") -> list[dict[str, Any]]:
    """At each sparsity, points of accuracy below the dense network of the same seed: mean, least and most of seeds."""
    found: dict[float, list[float]] = {}
    for run in runs:
        if run["pattern"] == pattern and run["seed"] in dense:
            for point in run["points"]:
                if kind in point:
                    found.setdefault(point["amount"], []).append(100 * (dense[run["seed"]] - point[kind]))
    return [
        {
            "amount": amount,
            "points": round(_mean(values), 2),
            "least": round(min(values), 2),
            "most": round(max(values), 2),
            "seeds": len(values),
        }
        for amount, values in found.items()
    ]


def points(losses: dict[str, list[dict]], table: dict[str, Any]) -> list[dict[str, Any]]:
    """Every pattern and sparsity that was both trained and timed, and the dense network."""
    found = [{"pattern": "dense", "amount": 0.0, "points": 0.0, "time_us": table["dense"]}] if "dense" in table else []
    for pattern, rows in losses.items():
        timed = {float(amount): time_us for amount, time_us in table.get(pattern, {}).items()}
        found += [
            {"pattern": pattern, "amount": row["amount"], "points": row["points"], "time_us": timed[row["amount"]]}
            for row in rows
            if row["amount"] in timed
        ]
    return found


def front(found: list[dict[str, Any]]) -> Front:
    """Those that no other is both as fast as and more accurate than, fastest first."""
    best: Front = []
    for point in sorted(found, key=lambda each: (each["time_us"], each["points"])):
        if not best or point["points"] < best[-1]["points"]:
            best.append(point)
    return best


def page(found: dict[str, Any]) -> str:
    """The tables as Markdown."""
    options, seeds = found["options"], len(found["dense_accuracy"])
    accuracy = ", ".join(f"{100 * value:.1f}%" for value in found["dense_accuracy"].values())
    lines = [
        "# What each pattern of zeros costs",
        "",
        f"Made by `{found['command']}`: a VGG16-shaped network on hard digits, {seeds} seed(s), "
        f"{options['epochs']} epochs of fine-tuning at each sparsity, one after the other. The dense network, trained "
        f"as long, reads {accuracy} right. The table has the points of accuracy lost against it, the mean over seeds, "
        "and the least and the most of them.",
        "",
        *_table(found["losses"], options["amounts"]),
    ]
    if "int8_losses" in found:
        lines += [
            "",
            "In eight bits, as ONNX Runtime quantises and runs them, against the dense network in float32:",
            "",
        ]
        lines += _table(found["int8_losses"], options["amounts"])
    lines += ["", "The sparsest of those that lose no more:", "", "| pattern | 1 point | 2 points |", "|---|---|---|"]
    for pattern, rows in found["losses"].items():
        lines.append(f"| {pattern} | " + " | ".join(_sparsest(rows, allowed) for allowed in ALLOWED) + " |")
    for network, best in found["fronts"].items():
        lines += ["", f"## {network}", "", "| fastest | sparsity | points lost | us |", "|---|---|---|---|"]
        lines += [
            f"| {each['pattern']} | {each['amount']:.0%} | {each['points']:.1f} | {each['time_us']:.4g} |"
            for each in best
        ]
    return "\n".join(lines) + "\n"


def _table(losses: dict[str, list[dict]], amounts: list[float]) -> list[str]:
    lines = ["| pattern | " + " | ".join(f"{amount:.0%}" for amount in amounts) + " |"]
    lines.append("|---" * (len(amounts) + 1) + "|")
    for pattern, rows in losses.items():
        cells = {row["amount"]: f"{row['points']:.1f} ({row['least']:.1f} to {row['most']:.1f})" for row in rows}
        lines.append(f"| {pattern} | " + " | ".join(cells.get(amount, "") for amount in amounts) + " |")
    return lines


def _sparsest(rows: list[dict], allowed: float) -> str:
    fitting = [row["amount"] for row in rows if row["points"] <= allowed]
    return f"{max(fitting):.0%}" if fitting else "none"


def draw(found: dict[str, Any], path: Path) -> None:
    """Loss against sparsity, one curve a pattern, and against each network's time, the Pareto front in rings."""
    plt = require("matplotlib.pyplot", "report")
    plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "study"})
    networks = ["", *found["times_us"]]
    figure, axes = plt.subplots(1, len(networks), figsize=(7.5 * len(networks), 4.5), squeeze=False)
    for axis, network in zip(axes[0], networks, strict=True):
        if network:
            _against_time(axis, found, network)
        else:
            for number, (pattern, rows) in enumerate(found["losses"].items()):
                _curve(axis, number, pattern, [100 * row["amount"] for row in rows], rows)
            axis.set_title("VGG16-shaped network on hard digits")
            axis.set_xlabel("zeros, %")
        axis.set_ylabel("points of accuracy lost")
        axis.set_yscale("symlog", linthresh=2)
        axis.set_yticks(TICKS, [str(tick) for tick in TICKS])
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def _against_time(axis: Any, found: dict[str, Any], network: str) -> None:
    table, best = found["times_us"][network], found["fronts"][network]
    for number, (pattern, rows) in enumerate(found["losses"].items()):
        shown = [each for each in points({pattern: rows}, table) if each["pattern"] == pattern]
        if shown:
            _curve(axis, number, pattern, [each["time_us"] for each in shown], shown)
    x, y = [each["time_us"] for each in best], [each["points"] for each in best]
    axis.plot(x, y, "o", markersize=11, fillstyle="none", color="black", label="Pareto front")
    axis.set_title(network)
    axis.set_xscale("log")
    axis.set_xlabel("microseconds")


def _curve(axis: Any, number: int, pattern: str, x: list[float], rows: list[dict]) -> None:
    y, marker = [row["points"] for row in rows], MARKERS[number % len(MARKERS)]
    axis.plot(x, y, marker=marker, color=f"C{number % 10}", markersize=5, linewidth=1, label=pattern)


def write(output: Path, found: dict[str, Any]) -> None:
    """OUTPUT.json, OUTPUT.md and OUTPUT.svg."""
    text = json.dumps(found, indent=1)
    output.with_suffix(".json").write_text(text + "\n")
    output.with_suffix(".md").write_text(page(found))
    draw(found, output.with_suffix(".svg"))
