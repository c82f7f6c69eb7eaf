"""The report on whole models, as Markdown and HTML, from rows of `scripts/models/bench_gpu.py`."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from benchmarks.report import model_rows, model_tables
from benchmarks.report.model_plots import plots
from benchmarks.report.rendering import Report
from tvm_sparse.files import publish

HEAD = (
    "Pruned networks of torchvision on a GPU, measured by scripts/models/bench_gpu.py. On both sides batch norm is "
    "folded into the convolutions. Of torch the better of its two memory layouts counts, in a CUDA graph, and the "
    "better of torch.compile's modes reduce-overhead and max-autotune, channels last, which make graphs of their own. "
    "All outputs are compared with float64 first, then all are timed in turns. Exact: no TF32. Density: the share of "
    "weights that are not zero. docs/pruning.md has the patterns of zeros.",
    "docs/results/README.md says in which runs the rows kept there were measured. This page is made by:",
)


def write(paths: Sequence[Path], folder: Path, name: str, with_html: bool) -> list[Path]:
    """Write the page, and the HTML page with plots and details if asked for, and return their paths.

    Raises
    ------
    UsageError
        A file has no rows, or a row is broken; matplotlib or jinja2 is missing.
    """
    networks = model_rows.load(paths)
    report = Report(
        title=f"Whole models on a GPU: {name}",
        head=HEAD,
        commands=(shlex.join(["python", "scripts/models/report.py", *map(str, paths), "--name", name]),),
        tables=tuple(model_tables.tables(networks)),
        details=tuple(model_tables.details(networks)),
    )
    texts = {folder / f"{name}.md": report.markdown()}
    if with_html:
        texts[folder / f"{name}.html"] = report.html(lambda: plots(networks))
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in texts.items():
        publish.write(path, text.encode())
    return list(texts)
