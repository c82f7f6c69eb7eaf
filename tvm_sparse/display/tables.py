"""Tables: plain values in, and only how they look is decided here."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from html import escape
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from tvm_sparse.display.words import DENSE, PREDICTED, cell, ratio

# Characters of a line in a terminal, however wide that is; a file gets whole cells.
MOST_WIDTH = 100
# Of a layer's name, whatever else there is.
LEAST_NAME = 12
# What everybody sees of a layer: keys of `layer_rows` and headings.
LAYER_COLUMNS = {
    "layer": "layer",
    "density": "density",
    "kernel": "kernel",
    "us": "us",
    "speedup": "speed-up",
    "status": "status",
}
# What needs no saying.
FLOAT32 = "float32"
# Those of them that are numbers.
NUMBERS = ("density", "us", "speedup")


class TableView:
    """A table of `rows`; `columns` maps keys of a row to headings, in their order. Numbers stand at the right.

    In a terminal each row is one line, and what does not fit is cut: at its end, or where the table has a `name`
    column, whose ends differ, that at its beginning.
    """

    def __init__(
        self,
        title: str,
        rows: Iterable[Mapping[str, Any]],
        columns: Mapping[str, str],
        name: str | None = None,
        numbers: Collection[str] = (),
    ):
        self.title, self.rows, self.columns, self.name = title, list(rows), dict(columns), name
        # Those whose cells are numbers, and those that say so of text.
        self.numbers = {key for key in columns if any(isinstance(row[key], int | float) for row in self.rows)}
        self.numbers |= set(numbers)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The table as it fits."""
        width = min(options.max_width, MOST_WIDTH) if console.is_terminal else options.max_width
        # rich would break a table's own title where the table ends.
        if self.title:
            yield from console.render(Text(self.title, style="bold"), options.update(width=width))
        yield from console.render(self._table(width), options.update(width=width))

    def html(self) -> str:
        """The same for a notebook."""
        head = "".join(f"<th>{escape(heading)}</th>" for heading in self.columns.values())
        body = "".join(
            f"<tr>{''.join(f'<td>{escape(cell(row[key]))}</td>' for key in self.columns)}</tr>" for row in self.rows
        )
        caption = f"<pre>{escape(self.title)}</pre>" if self.title else ""
        return f"{caption}<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    def _table(self, width: int) -> Table:
        result = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for key, heading in self.columns.items():
            is_number = key in self.numbers
            result.add_column(heading, justify="right" if is_number else "left", no_wrap=is_number)
        most = self._name_width(width)
        for row in self.rows:
            cells = {key: cell(row[key]) for key in self.columns}
            if self.name is not None and len(cells[self.name]) > most:
                cells[self.name] = "…" + cells[self.name][1 - most :]
            result.add_row(*(Text(each, no_wrap=True, overflow="ellipsis") for each in cells.values()))
        return result

    def _name_width(self, width: int) -> int:
        """What the other columns leave to the name."""
        others = [key for key in self.columns if key != self.name]
        longest = (max([len(self.columns[key]), *(len(cell(row[key])) for row in self.rows)]) + 2 for key in others)
        return max(LEAST_NAME, width - sum(longest))


def layers(title: str, rows: Sequence[Mapping[str, Any]]) -> TableView:
    """What computes each layer; `rows` as `report` of a model gives them. Layers that look alike share a line."""
    columns = {"variant": "batch, size"} if rows and "variant" in rows[0] else {}
    return TableView(title, layer_rows(rows), columns | LAYER_COLUMNS, "layer", NUMBERS)


def layer_rows(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Cells of `LAYER_COLUMNS` and ``variant``, one row for layers that differ in their names alone."""
    alike: dict[tuple[Any, ...], list[str]] = {}
    for row in rows:
        speedup, status, kernel = row.get("speedup"), row.get("status", ""), row.get("kernel", row["schedule"])
        # A kernel of ours that nobody has timed has no time, though the dense one has.
        dense_us = row["dense_time_us"] if kernel == DENSE else None
        cells = {
            "variant": row.get("variant"),
            "density": f"{row['density']:.2f}",
            # Artifacts that are older than these words have the schedule's name.
            "kernel": kernel,
            "us": cell(row["time_us"] if row["time_us"] is not None else dense_us),
            "speedup": "-" if speedup is None else f"{'~' * (status == PREDICTED)}{ratio(speedup)}",
            # Rounding is never silent.
            "status": ", ".join(filter(None, (status, row["precision"] if row["precision"] != FLOAT32 else ""))),
        }
        alike.setdefault(tuple(cells.items()), []).append(row["layer"])
    return [{**dict(cells), "layer": _together(names)} for cells, names in alike.items()]


def _together(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} x{len(names)}"


def detail_lines(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """One line a layer: its kernel's variant, and why that one."""
    return [
        f"{row['layer']}: {row['schedule']}, {row['precision']}, {row['structure']} zeros; {row['reason']}"
        for row in rows
    ]


def times(title: str, rows: Sequence[Mapping[str, Any]]) -> TableView:
    """A table of what `verdict.measured.compared` returns."""
    ours = rows[0]["name"]
    cells = [
        {
            "name": row["name"],
            "median": row["time_us"]["median"],
            "spread": f"{cell(row['time_us']['q1'])} - {cell(row['time_us']['q3'])}",
            "speedup": _ratio_text(row),
        }
        for row in rows
    ]
    columns = {
        "name": "",
        "median": "median us",
        "spread": "quartiles us",
        "speedup": f"{ours} against it",
    }
    return TableView(title, cells, columns)


def _ratio_text(row: Mapping[str, Any]) -> str | None:
    ratio = row["speedup"]
    if ratio is None:
        return None
    return f"{ratio['median']:.2f}x ({ratio['q1']:.2f} - {ratio['q3']:.2f}), {row['verdict']}"
