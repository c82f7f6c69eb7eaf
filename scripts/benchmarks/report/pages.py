"""The report on Table 2, as Markdown and HTML, from documents of results; needs no GPU."""

from collections.abc import Sequence
from pathlib import Path

from benchmarks.report.plots import plots
from benchmarks.report.rendering import Report
from benchmarks.report.search_curves import curves
from benchmarks.report.tables import tables
from benchmarks.results import Document, TuningCurve
from tvm_sparse.errors import UsageError
from tvm_sparse.files import publish


def head(document: Document) -> tuple[str, str]:
    """What was measured where."""
    device, run = document.runs[0].device, document.runs[0]
    parts = [device.arch]
    if device.multiprocessors:
        parts += [f"{device.multiprocessors} multiprocessors", f"{device.clock_mhz:.0f} MHz at most"]
    if device.driver:
        parts.append(f"driver {device.driver}")
    versions = ", ".join(f"{name} {version}" for name, version in run.versions.items())
    started = ", ".join(each.started for each in document.runs)
    return f"{device.name} ({', '.join(parts)}); {versions}.", f"Started {started}. Commands:"


def load(paths: Sequence[Path], tuning: Sequence[str]) -> Document:
    """All results and curves; UsageError where they are not of one GPU, or there are none."""
    document = Document.merge(Document.load(path) for path in paths)
    names = {run.device.name for run in document.runs}
    if len(names) != 1 or not document.cases:
        raise UsageError("report", "one report is of one GPU", ", ".join(sorted(names)) or "no results")
    added = list[TuningCurve]()
    for text in tuning:
        label, separator, path = text.partition("=")
        if not separator:
            raise UsageError("--tuning", "is not LABEL=LOG", text)
        added += curves(label, Path(path))
    return Document.merge([document, Document(runs=(), tuning=tuple(added))])


def write(document: Document, density: float, folder: Path, name: str, with_html: bool) -> list[Path]:
    """Write all files of the report and return their paths; UsageError where nothing was measured at `density`."""
    measured = sorted({each for case in document.cases for each in case.densities})
    if density not in measured:
        allowed = ", ".join(f"{each:g}" for each in measured)
        raise UsageError("--density", "nothing was measured at it", density, allowed)
    folder.mkdir(parents=True, exist_ok=True)
    report = Report(
        title=f"Table 2 on the GPU: {document.runs[0].device.name}",
        head=head(document),
        commands=tuple(run.command for run in document.runs),
        tables=tuple(tables(document, density)),
    )
    texts = {folder / f"{name}.md": report.markdown()}
    if with_html:
        texts[folder / f"{name}.html"] = report.html(lambda: plots(document, density))
    results = folder / f"{name}.json.xz"
    document.save(results)
    for path, text in texts.items():
        publish.write(path, text.encode())
    return [results, *texts]
