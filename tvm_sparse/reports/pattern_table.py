"""What a model would keep and weigh if it were pruned to each pattern, and how long its layers would take.

Kept magnitudes and bytes are exact. Times are estimates; those of a pattern are of kernels that make use of it.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from rich.text import Text
from tvm.target import Target

from tvm_sparse.conv.packed_size import packed_bytes
from tvm_sparse.conv.structure import FOUR, OF_FOURS, Structure
from tvm_sparse.conv.structured_mask import TWO_FOUR, structured_mask
from tvm_sparse.display import tables
from tvm_sparse.frontend.passes.find_convolutions import ConvLayer
from tvm_sparse.prune import layer_times
from tvm_sparse.reports.report import BLANK, Part

PATTERNS = (
    "unstructured",
    *(f"vector{length}" for length in (4, 8, 16, 32, 64)),
    *("slice64cr+vector8", "slice64cr", "slice64c"),
    *("channels4", "filters", "channels"),
)
# A pattern fits no layer of which it prunes less than was asked for by more than this: one unit always stays.
FEWER = 0.05


def pattern_document(layers: Sequence[ConvLayer], amount: float, target: Target) -> dict[str, Any]:
    """For each layer and each pattern at a share of zeros of `amount`, as JSON values.

    ``kept`` is the share of the sum of magnitudes that is left, ``bytes`` are those of the packed weight. Both are None
    where the pattern does not divide the layer's channels, or a layer has too few units of it. Times are microseconds,
    dense, with so many zeros anywhere, and by pattern; of all layers those that a pattern does not fit are dense.
    """
    names = (*PATTERNS, "2:4") if amount == TWO_FOUR else PATTERNS
    rows = []
    for layer in layers:
        clock = layer_times.estimated(layer.spec, target)
        # A kernel's weight has zeros where the model has no weights.
        density = (1 - amount) * layer.model_pattern.size / layer.pattern.size
        found = {name: _kept_and_bytes(layer, name, 1 - density) for name in names}
        rows.append(
            {
                "layer": layer.name,
                "dense_time_us": clock(layer.model_pattern.size / layer.pattern.size),
                "time_us": clock(density),
                "magnitude": float(np.abs(layer.weight).sum(dtype=np.float64)),
                "dense_bytes": layer.model_pattern.size * layer.weight.itemsize,
                "kept": {name: each[0] if each else None for name, each in found.items()},
                "bytes": {name: each[1] if each else None for name, each in found.items()},
                "times_us": {name: _time_us(layer, name, density, target) for name in names if found[name]},
            }
        )
    return {"amount": amount, "layers": rows, "patterns": [_total(name, rows) for name in names]}


def _time_us(layer: ConvLayer, name: str, density: float, target: Target) -> float:
    fitted = Structure.named(name).fitted(layer.spec.k // layer.spec.groups)
    return layer_times.estimated_us(layer.spec, target, fitted, density)


def _kept_and_bytes(layer: ConvLayer, name: str, amount: float) -> tuple[float, int] | None:
    weight, groups, wanted = layer.model_weight, layer.spec.groups, Structure.named(name)
    fitted = wanted.fitted(len(weight) // groups)
    if fitted.vector != wanted.vector or (wanted.slices and fitted.tile == 1):
        return None
    if name in OF_FOURS and weight.shape[1] % FOUR:
        return None
    saliency = np.abs(weight)
    mask = structured_mask(saliency, fitted, amount, groups)
    if 1 - mask.mean() < amount - FEWER:
        return None
    total = saliency.sum(dtype=np.float64)
    kept = float(saliency[mask].sum(dtype=np.float64) / total) if total else 1.0
    return kept, packed_bytes(mask, fitted, groups)


def _total(name: str, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of all layers that it fits the mean of what they keep, and bytes beside dense; of all the time."""
    fitting = [row for row in rows if row["kept"][name] is not None]
    dense_bytes = sum(row["dense_bytes"] for row in fitting)
    return {
        "pattern": name,
        "layers": len(fitting),
        "kept": sum(row["kept"][name] for row in fitting) / len(fitting) if fitting else None,
        "bytes": sum(row["bytes"][name] for row in fitting),
        "dense_bytes": dense_bytes,
        "time_us": sum(row["times_us"].get(name, row["dense_time_us"]) for row in rows),
    }


def pattern_parts(document: dict[str, Any]) -> Iterator[Part]:
    """Two tables: by layer and by pattern."""
    amount = f"{document['amount']:.3g}"
    names = [each["pattern"] for each in document["patterns"]]
    rows = [
        {**row, **{name: None if kept is None else f"{kept:.1%}" for name, kept in row["kept"].items()}}
        for row in document["layers"]
    ]
    columns = {"layer": "layer", "dense_time_us": "dense us", "time_us": "sparse us"} | {name: name for name in names}
    title = f"Magnitude that each pattern keeps with a share of {amount} zeros; estimated times"
    yield tables.TableView(title, rows, columns)
    totals = [
        {
            "pattern": each["pattern"],
            "layers": each["layers"],
            "kept": None if each["kept"] is None else f"{each['kept']:.1%}",
            "megabytes": each["bytes"] / 1e6,
            "dense": each["dense_bytes"] / 1e6,
            "time_us": each["time_us"],
        }
        for each in document["patterns"]
    ]
    headings = {
        "pattern": "pattern",
        "layers": "layers it fits",
        "kept": "kept, mean",
        "megabytes": "weights MB",
        "dense": "dense MB",
        "time_us": "all layers, us",
    }
    yield BLANK
    yield tables.TableView("All layers", totals, headings)
    dense_us = sum(row["dense_time_us"] for row in document["layers"])
    yield Text(
        f"Times are estimates, of a layer that a pattern does not fit the dense one; all dense: {dense_us:.4g} us. "
        "Measure what you choose: optimize does that."
    )
