"""The table of a trained network: what its rows read, how large they are, and how long one line takes."""

import statistics
from typing import Any

TITLES = {
    "original": "as shipped",
    "magnitude": "the smallest weights of each layer set to zero",
    "fitted": "the other weights fitted to 32 images",
    "fine-tuned": "fine-tuned",
}


MEASURES = ("lines", "characters")


def millions(count: int) -> str:
    """A count in millions."""
    return f"{count / 1e6:.2f} M"


def written(document: dict[str, Any]) -> str:
    """The page of a run of `trained_network.py`."""
    made, machine, accuracy = (document[key] for key in ("made", "machine", "accuracy"))
    pruned, tests = document["networks"]["fine-tuned"], list(accuracy["original"])
    heads = [f"{what}, {test}" for test in tests for what in MEASURES]
    rows = []
    for name, title in TITLES.items():
        shares = [f"{accuracy[name][test][what]:.1%}" for test in tests for what in MEASURES]
        rows.append(f"| {' | '.join((title, *shares, millions(document['networks'][name]['nonzeros'])))} |")
    best = {engine: min(times) for engine, times in document["time_ms"].items()}
    ours, rounds = best["tvm-sparse"], len(document["time_ms"]["tvm-sparse"])
    spread = {engine: f"{statistics.median(times):.2f}" for engine, times in document["time_ms"].items()}
    times = [f"| {engine} | {ms:.2f} | {spread[engine]} | {ms / ours:.2f}x |" for engine, ms in best.items()]
    same = min(each["compiled_reads_the_same"] for each in accuracy["fine-tuned"].values())
    return "\n".join(
        (
            "# A trained network: a recogniser of lines of text",
            "",
            "Made by `python scripts/study/trained_network.py`. PP-OCRv4's mobile recogniser from RapidOCR's wheel",
            "(Apache-2.0), its answers cut to printable ASCII for all rows.",
            f"{pruned['pruned_layers']} of its {pruned['layers']} layers, which do most of the arithmetic, are pruned",
            f"to {made['zeros']:.0%} zeros; then it learns from itself, {made['steps']} steps of {made['batch']}",
            "rendered lines each. The table has the lines, and the characters, that are read right, spaces apart, of",
            f"{made['test_lines']} rendered lines of other words each.",
            "",
            f"| network | {' | '.join(heads)} | weights that are not zero |",
            f"|---{'|---' * len(heads)}|---|",
            *rows,
            "",
            f"Compiled, the last one reads {same:.1%} of the lines as it does in ONNX Runtime.",
            "",
            f"One line of 48x320 pixels on one thread of {machine['device']} ({machine['arch']}):",
            f"ms, the least and the median of {rounds} processes.",
            f"ONNX Runtime {machine['onnxruntime']} runs the fine-tuned file.",
            "",
            "| engine | least | median | tvm-sparse against it |",
            "|---|---|---|---|",
            *times,
            "",
        )
    )
