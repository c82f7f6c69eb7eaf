"""A model's layers as one HTML page: without scripts, without a network, on a phone and in the dark."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from tvm_sparse.display.words import DENSE, cell

# Layers that the plot shows by name; the rest share its last line.
MOST_BARS = 24
# Characters of a name in the plot, which cannot break lines.
MOST_NAME = 30
# Pixels: of a layer in the plot, and of a bar.
LINE_PX, BAR_PX = 44, 8
# Key of a layer -> heading. A key that no layer has is left out.
COLUMNS = {
    "layer": "layer",
    "shape": "input, filters",
    "density": "density",
    "kernel": "kernel",
    "time_us": "us",
    "speedup": "speed-up",
    "why": "why",
}
_NUMBERS = ("density", "time_us", "speedup")
_STYLE = """
:root { color-scheme: light dark; --text: #1c2024; --dim: #5b636b; --page: #ffffff; --line: #d8dde2; --card: #f4f6f8;
  --sparse: #0b7a75; --dense: #b3541e; --before: #c3c9cf; }
@media (prefers-color-scheme: dark) { :root { --text: #e6e9ec; --dim: #a2abb3; --page: #14171a; --line: #343a40;
  --card: #1d2125; --sparse: #3fc1b8; --dense: #f0975a; --before: #4d555c; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 76rem; padding: 1rem; background: var(--page); color: var(--text);
  font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.4rem; margin: 0 0 .5rem; } h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
.verdict { font-size: 1.15rem; font-weight: 600; background: var(--card); border-left: 4px solid var(--sparse);
  padding: .6rem .8rem; margin: .5rem 0; }
.dim, dt { color: var(--dim); } dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; }
dd { margin: 0; } li { margin: .3rem 0; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { text-align: left; vertical-align: top; padding: .35rem .6rem .35rem 0; min-width: 4.5rem;
  border-bottom: 1px solid var(--line); } td.layer { min-width: 8rem; }
th { color: var(--dim); font-weight: 600; white-space: nowrap; } .number { text-align: right; white-space: nowrap; }
svg { display: block; width: 100%; font-size: 13px; } svg text { fill: var(--text); }
.sparse { fill: var(--sparse); } .dense { fill: var(--dense); } .before { fill: var(--before); }
.rest { fill: var(--dim); }
.key { display: inline-block; width: .8rem; height: .8rem; margin: 0 .3rem 0 .8rem; }
@media (max-width: 46rem) {
  thead { display: none; } table, tbody, tr, td { display: block; } tr { padding: .5rem 0;
  border-bottom: 1px solid var(--line); } td, td.number { border: 0; padding: .05rem 0; text-align: left;
  white-space: normal; } td::before { content: attr(data-label) ": "; color: var(--dim); }
  td.layer { font-weight: 600; } td.layer::before { content: none; } td.empty { display: none; } }
"""


@dataclass(frozen=True)
class Chapter:
    """What a page says of a model, or of one batch of it.

    Attributes
    ----------
    title
        The model and its batch.
    verdict
        Whether it pays, in one line.
    notes
        What else is to be known of it, a sentence each.
    layers
        Objects with keys of `COLUMNS`, and, where that is known, ``share`` and ``dense_share``: what a layer takes of
        the time of all, and what it would take dense.
    advice
        What would help next, a sentence each.
    basis
        What the plot's times are, such as ``predicted``.
    """

    title: str
    verdict: str
    notes: Sequence[str]
    layers: Sequence[Mapping[str, Any]]
    advice: Sequence[str]
    basis: str


def page(title: str, chapters: Sequence[Chapter], facts: Mapping[str, str]) -> str:
    """A whole HTML document; `facts` are of the machine and of versions."""
    parts = [each for chapter in chapters for each in _chapter(chapter)]
    rows = "".join(f"<dt>{_text(name)}</dt><dd>{_text(value)}</dd>" for name, value in facts.items())
    return "\n".join(
        (
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{_text(title)}: tvm-sparse report</title>\n<style>{_STYLE}</style>\n</head>\n<body>",
            *parts,
            f"<h2>Machine and versions</h2>\n<dl>{rows}</dl>",
            "</body>\n</html>\n",
        )
    )


def _chapter(chapter: Chapter) -> list[str]:
    shown = [row for row in chapter.layers if row.get("share") is not None]
    plot = _plot(shown, len(chapter.layers), chapter.basis) if shown else _paragraph("No layer's time is known.")
    advice = "".join(f"<li>{_text(each)}</li>" for each in chapter.advice)
    return [
        f"<h1>{_text(chapter.title)}</h1>",
        f'<p class="verdict">{_text(chapter.verdict)}</p>',
        *map(_paragraph, chapter.notes),
        f"<h2>Where the time goes</h2>\n{plot}",
        f"<h2>What would help next</h2>\n<ul>{advice}</ul>" if advice else "",
        f"<h2>Layers</h2>\n{_table(chapter.layers)}",
    ]


def _plot(rows: Sequence[Mapping[str, Any]], layers: int, basis: str) -> str:
    """Bars of the layers in their order: what each takes, above what it would take dense."""
    heaviest = sorted(rows, key=lambda row: -row["share"])[:MOST_BARS]
    named = [row for row in rows if row in heaviest]
    rest = [row for row in rows if row not in heaviest]
    if rest:
        total = {key: sum(row[key] or 0.0 for row in rest) for key in ("share", "dense_share")}
        named.append({"layer": f"{len(rest)} other layers", "kernel": "", **total})
    most = max(max(row["share"], row["dense_share"] or 0.0) for row in named) or 1.0
    bars = "".join(_bar(at * LINE_PX, row, most) for at, row in enumerate(named))
    keys = "".join(
        f'<svg class="key" viewBox="0 0 1 1" aria-hidden="true"><rect class="{name}" width="1" height="1"/></svg>{text}'
        for name, text in (("sparse", "sparse kernel"), ("dense", "dense kernel"), ("before", "the same layer, dense"))
    )
    missing = f" {layers - len(rows)} of {layers} layers have no time and are left out." * (len(rows) < layers)
    label = "Share of the time of each layer"
    return (
        f'<p class="dim">Shares of the time of all layers, {_text(basis)}.{missing}<br>{keys}</p>\n'
        f'<svg role="img" aria-label="{label}" height="{len(named) * LINE_PX}">{bars}</svg>'
    )


def _bar(top: int, row: Mapping[str, Any], most: float) -> str:
    name, dense = row["layer"], row["dense_share"]
    # Names differ at their ends.
    short = name if len(name) <= MOST_NAME else "…" + name[1 - MOST_NAME :]
    label = f'<text y="{top + 14}">{_text(short)}: {row["share"]:.1%}</text>'
    kind = {DENSE: "dense", "": "rest"}.get(row["kernel"], "sparse")
    own = _rectangle(kind, top + 20, row["share"] / most)
    before = "" if dense is None else _rectangle("before", top + 20 + BAR_PX, dense / most)
    return f"<g><title>{_text(name)}</title>{label}{own}{before}</g>"


def _rectangle(kind: str, y: int, share: float) -> str:
    return f'<rect class="{kind}" y="{y}" width="{100 * share:.2f}%" height="{BAR_PX}"/>'


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    columns = {key: heading for key, heading in COLUMNS.items() if any(row.get(key) is not None for row in rows)}
    head = "".join(f"<th{_class(key, '')}>{heading}</th>" for key, heading in columns.items())
    body = "\n".join(
        f"<tr>{''.join(_cell(key, heading, row.get(key)) for key, heading in columns.items())}</tr>" for row in rows
    )
    return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"


def _cell(key: str, heading: str, value: Any) -> str:
    empty = "empty" if value in (None, "") else ""
    return f'<td{_class(key, empty)} data-label="{heading}">{_text("" if empty else cell(value))}</td>'


def _class(key: str, more: str) -> str:
    names = " ".join(filter(None, ("number" if key in _NUMBERS else "", "layer" if key == "layer" else "", more)))
    return f' class="{names}"' if names else ""


def _paragraph(text: str) -> str:
    return f'<p class="dim">{_text(text)}</p>'


def _text(value: str) -> str:
    return escape(cell(value))
