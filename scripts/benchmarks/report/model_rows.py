"""Rows of whole models that `scripts/models/bench_gpu.py` wrote, as plain mappings; needs no torch."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvm_sparse.errors import UsageError, first_line

Row = Mapping[str, Any]
# Types of a JSON value, and what they are called.
TEXT, FLAG, LIST = ((str,), "text"), ((bool,), "true or false"), ((list,), "a list")
COUNT, NUMBER = ((int,), "a whole number"), ((int, float), "a number")
MAYBE = ((int, float, type(None)), "a number or null")
# Precision -> fields ``torch_..._us`` with times of torch in it, of CUDA graphs and of `torch.compile`.
PRECISIONS = {each: (each, f"compile_{each}") for each in ("fp32", "tf32", "fp16")}
TORCH = [field for fields in PRECISIONS.values() for field in fields]
# Fields of `benchmarks.models.row.Row` that reports show.
FIELDS: dict[str, tuple[tuple[type, ...], str]] = {
    **dict.fromkeys(("model", "pattern", "dtype"), TEXT),
    "batch": COUNT,
    "ours_exact": FLAG,
    **dict.fromkeys(("density", "ours_us", "compile_s", "kernels_in_model_us", "max_relative_error"), NUMBER),
    **dict.fromkeys((f"torch_{each}_us" for each in TORCH), MAYBE),
    **dict.fromkeys(("cached_compile_s", "sum_of_log_us", "memory_bytes"), MAYBE),
    **dict.fromkeys(("rivals", "layers"), LIST),
}
# Those of the entries of `layers`: what was decided for a layer, and what the profiler says of a kernel.
LAYER = {"layer": TEXT, "schedule": TEXT, "time_us": MAYBE}
KERNEL = {"kernel": TEXT, "number": NUMBER, "us": NUMBER}
# How ours computes, in the order of tables.
WAYS = ("exact", "TF32 allowed", "float16", "bfloat16")
UNSTRUCTURED = "unstructured"


@dataclass(frozen=True)
class Network:
    """A network at a batch, a density (0 to 1) and a pattern of zeros: its rows by way, one at least, as in `WAYS`."""

    model: str
    batch: int
    density: float
    pattern: str
    rows: Mapping[str, Row]

    @property
    def first(self) -> Row:
        """The row whose times of torch are shown; those of the others are of the same turns, or of another run."""
        return next(iter(self.rows.values()))


def load(paths: Sequence[Path]) -> list[Network]:
    """All networks: unstructured ones first, by density, model in the order of the files, and batch.

    Of rows of the same network and way the last counts.

    Raises
    ------
    UsageError
        A file cannot be read, has no rows, or a row lacks a field or has one of another type.
    """
    found: dict[tuple[str, int, float, str], dict[str, Row]] = {}
    for row in (row for path in paths for row in rows_of(path)):
        *network, way = key_of(row)
        found.setdefault(tuple(network), {})[way] = row
    models = list(dict.fromkeys(model for model, *_ in found))
    networks = [Network(*key, {way: rows[way] for way in WAYS if way in rows}) for key, rows in found.items()]
    return sorted(
        networks,
        key=lambda each: (
            each.pattern != UNSTRUCTURED,
            each.pattern,
            each.density,
            models.index(each.model),
            each.batch,
        ),
    )


def sections(networks: Sequence[Network]) -> dict[str, list[Network]]:
    """Networks by pattern and density, which the keys name."""
    found: dict[str, list[Network]] = {}
    for each in networks:
        found.setdefault(f"density {each.density:g}, {each.pattern}", []).append(each)
    return found


def key_of(row: Row) -> tuple[Any, ...]:
    """What no two rows of a report share: the network with its batch, density and pattern, and the way of ours."""
    return row["model"], row["batch"], row["density"], row["pattern"], _way(row)


def rows_of(path: Path) -> list[Row]:
    """The rows of a file; errors as of `load`."""
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UsageError(
            str(path), f"cannot be read ({first_line(error)})", hint="give a file of bench_gpu.py"
        ) from None
    rows = document.get("rows") if isinstance(document, dict) else None
    if not isinstance(rows, list) or not rows:
        raise UsageError(str(path), "holds no rows", hint="give a file of bench_gpu.py")
    for number, row in enumerate(rows, 1):
        _check(path, f"row {number}", row, FIELDS)
        if _way(row) not in WAYS:
            raise UsageError(
                str(path), f"dtype of row {number} is unknown", row["dtype"], f"float32, {', '.join(WAYS[2:])}"
            )
        for entry in row["layers"]:
            is_kernel = isinstance(entry, dict) and "kernel" in entry
            _check(path, f"an entry of layers of row {number}", entry, KERNEL if is_kernel else LAYER)
    return rows


def _check(path: Path, name: str, row: Any, fields: Mapping[str, tuple[tuple[type, ...], str]]) -> None:
    if not isinstance(row, dict):
        raise UsageError(str(path), f"{name} is no object", hint="write it again with bench_gpu.py")
    for field, (types, allowed) in fields.items():
        if field not in row:
            raise UsageError(str(path), f"{name} lacks {field}", hint="write it again with bench_gpu.py")
        if type(row[field]) not in types:
            raise UsageError(str(path), f"{field} of {name} is of another type", type(row[field]).__name__, allowed)


def _way(row: Row) -> str:
    if row["dtype"] == "float32":
        return "exact" if row["ours_exact"] else "TF32 allowed"
    return str(row["dtype"])


def fastest_us(row: Row, precision: str) -> float | None:
    """Of torch in a precision, a CUDA graph or what `torch.compile` made; None where nothing was measured."""
    return min((us for field in PRECISIONS[precision] if (us := row[f"torch_{field}_us"]) is not None), default=None)


def speed(row: Row, precision: str) -> float | None:
    """How many times as fast ours is as the fastest of torch in a precision, in the row's own turns."""
    return ratio(fastest_us(row, precision), row["ours_us"])


def ratio(over_us: float | None, under_us: float | None) -> float | None:
    """A time over another; None where one was not measured."""
    return over_us / under_us if over_us and under_us else None
