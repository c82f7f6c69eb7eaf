"""Tables and consoles of the command line: plain values in, and only how they look is decided here."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

# Characters a line where the output is no terminal; tables are not cut to a guess of 80.
PLAIN_WIDTH = 200


def result_console() -> Console:
    """For results: standard output."""
    return _console(stderr=False)


def progress_console() -> Console:
    """For progress and messages: standard error."""
    return _console(stderr=True)


def _console(stderr: bool) -> Console:
    console = Console(stderr=stderr, highlight=False)
    return console if console.is_terminal else Console(stderr=stderr, highlight=False, width=PLAIN_WIDTH)


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


def cell(value: Any) -> str:
    """One value of a table: four significant digits, ``-`` for None, names and counts as text."""
    if value is None:
        return "-"
    if isinstance(value, dict):
        return ", ".join(f"{name} ({count})" for name, count in value.items())
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return ", ".join(value)
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)


def decisions(rows: Sequence[Mapping[str, Any]]) -> Table:
    """The decision table of a compiled model; `rows` as `report` of the model gives them."""
    columns = {"batch": "batch"} if rows and "batch" in rows[0] else {}
    columns |= {
        "layer": "layer",
        "density": "density",
        "structure": "structure",
        "schedule": "chosen",
        "dense_time_us": "dense us",
        "time_us": "ours us",
        "reason": "reason",
    }
    return table("What computes each layer", rows, columns)
