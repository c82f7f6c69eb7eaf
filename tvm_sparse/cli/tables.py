"""Tables of the command line: plain values in, and only how they look is decided here."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from tvm_sparse.display.words import cell


def table(title: str, rows: Iterable[Mapping[str, Any]], columns: Mapping[str, str]) -> Table:
    """A table of `rows`; `columns` maps keys of a row to headings, in their order. Numbers stand at the right."""
    rows = list(rows)
    result = Table(
        title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0)
    )
    for key, heading in columns.items():
        is_number = any(isinstance(row[key], int | float) for row in rows)
        result.add_column(heading, justify="right" if is_number else "left", overflow="fold", no_wrap=is_number)
    for row in rows:
        result.add_row(*(Text(cell(row[key])) for key in columns))
    return result


def decisions(rows: Sequence[Mapping[str, Any]]) -> Table:
    """The decision table of a compiled model; `rows` as `report` of the model gives them."""
    columns = {"batch": "batch"} if rows and "batch" in rows[0] else {}
    columns |= {
        "layer": "layer",
        "density": "density",
        "structure": "structure",
        "schedule": "chosen",
        "precision": "precision",
        "dense_time_us": "dense us",
        "time_us": "ours us",
        "reason": "reason",
    }
    return table("What computes each layer", rows, columns)
