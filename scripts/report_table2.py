"""Make the report on Table 2 from what `bench_table2.py` measured; needs no GPU.

    python scripts/report_table2.py table2.json.xz sweep.json.xz --name table2-h200
    python scripts/report_table2.py table2.json.xz --tuning XGBoost=tuned.jsonl --tuning random=random.jsonl --name new

Several results of one GPU become one report: tables at one density come from the case with most methods, those over
densities from the case with most densities, and no ratio is taken across cases. ``--tuning LABEL=LOG`` adds how a
search went, from a tuning log that holds all its trials. Writes ``<name>.md``, ``<name>.html`` (one self-contained file
with plots; needs matplotlib and jinja2, extra ``report``) and ``<name>.json.xz``, from which alone the same report is
made again. Warm times, each search, and what could not be timed are on the page alone.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

# The checkout need not be installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from report_cells import Table
from report_tables import tables
from report_tuning import curves
from table2_results import Document

from tvm_sparse.errors import TvmSparseError, UsageError

RESULTS = Path(__file__).parents[1] / "docs" / "results"
TEMPLATE = Path(__file__).with_name("report_table2.html.j2")


def head(document: Document) -> list[str]:
    """What was measured where."""
    device, run = document.runs[0].device, document.runs[0]
    parts = [device.arch]
    if device.multiprocessors:
        parts += [f"{device.multiprocessors} multiprocessors", f"{device.clock_mhz:.0f} MHz at most"]
    if device.driver:
        parts.append(f"driver {device.driver}")
    versions = ", ".join(f"{name} {version}" for name, version in run.versions.items())
    started = ", ".join(each.started for each in document.runs)
    return [f"{device.name} ({', '.join(parts)}); {versions}.", f"Started {started}. Commands:"]


def markdown(document: Document, made: Sequence[Table], title: str) -> str:
    """The report as Markdown, without plots and details."""
    first, second = head(document)
    commands = [f"    {run.command}" for run in document.runs]
    shown = [table.markdown() for table in made if not table.detail]
    return "\n".join([f"# {title}", "", first, "", second, "", *commands, "", *shown])


def html(document: Document, made: Sequence[Table], title: str, density: float) -> str:
    """The report as one page with plots.

    Raises
    ------
    UsageError
        matplotlib or jinja2 is missing.
    """
    try:
        import jinja2
        import matplotlib
    except ImportError as error:
        raise UsageError("report", f"{error.name} is missing", hint="pip install 'tvm-sparse[report]'") from None
    del matplotlib
    from report_plots import plots

    environment = jinja2.Environment(autoescape=True, trim_blocks=True, undefined=jinja2.StrictUndefined)
    environment.filters["verdict"] = lambda cell: next((word for word in ("faster", "slower") if word in cell), "")
    return environment.from_string(TEMPLATE.read_text()).render(
        title=title,
        head=head(document),
        commands=[run.command for run in document.runs],
        plots=plots(document, density),
        tables=made,
    )


def load(paths: Sequence[Path], tuning: Sequence[str]) -> Document:
    """All results and curves; UsageError where they are not of one GPU, or there are none."""
    document = Document.merge(Document.load(path) for path in paths)
    names = {run.device.name for run in document.runs}
    if len(names) != 1 or not any(run.cases for run in document.runs):
        raise UsageError("report", "one report is of one GPU", ", ".join(sorted(names)) or "no results")
    added = []
    for text in tuning:
        label, separator, path = text.partition("=")
        if not separator:
            raise UsageError("--tuning", "is not LABEL=LOG", text)
        added.append(Document(runs=(), tuning=tuple(curves(label, Path(path)))))
    return Document.merge([document, *added])


def write(document: Document, density: float, folder: Path, name: str, with_html: bool) -> list[Path]:
    """Write all files of the report and return their paths; UsageError where nothing was measured at `density`."""
    measured = sorted({each for run in document.runs for case in run.cases for each in case.densities})
    if density not in measured:
        raise UsageError(
            "--density", "nothing was measured at it", density, ", ".join(f"{each:g}" for each in measured)
        )
    folder.mkdir(parents=True, exist_ok=True)
    title = f"Table 2 on the GPU: {document.runs[0].device.name}"
    made = tables(document, density)
    page = html(document, made, title, density) if with_html else None
    paths = [folder / f"{name}.json.xz", folder / f"{name}.md"]
    document.save(paths[0])
    paths[1].write_text(markdown(document, made, title))
    if page is not None:
        paths.append(folder / f"{name}.html")
        paths[2].write_text(page)
    return paths


def main() -> int:
    """Write the report that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measured", type=Path, nargs="+", help="files of bench_table2.py, or of an earlier report")
    parser.add_argument("--tuning", action="append", default=[], metavar="LABEL=LOG", help="a search; may be repeated")
    parser.add_argument("--density", type=float, default=0.1, help="of the tables at one density (default: 0.1)")
    parser.add_argument("--name", required=True, help="of the files to write, such as table2-h200")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder to write to (default: docs/results)")
    parser.add_argument("--no-html", action="store_true", help="write Markdown and JSON only")
    options = parser.parse_args()
    try:
        document = load(options.measured, options.tuning)
        for path in write(document, options.density, options.results, options.name, not options.no_html):
            print(f"written: {path}")
    except TvmSparseError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
