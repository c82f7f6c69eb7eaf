"""A report as Markdown and as one HTML page; needs no GPU."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.report.cells import Table
from tvm_sparse.errors import UsageError

TEMPLATE = Path(__file__).with_name("report.html.j2")


@dataclass(frozen=True)
class Report:
    """What a report shows: a title, paragraphs on what was measured and how to read it, commands, and tables.

    `details` are tables that the HTML page opens on a click; Markdown has none of them, nor of the tables that are a
    `detail` themselves.
    """

    title: str
    head: tuple[str, ...]
    commands: tuple[str, ...]
    tables: tuple[Table, ...]
    details: tuple[Table, ...] = ()

    def markdown(self) -> str:
        """As Markdown, without plots and details."""
        head = [line for paragraph in self.head for line in (paragraph, "")]
        commands = [f"    {command}" for command in self.commands]
        shown = [table.markdown() for table in self.tables if not table.detail]
        return "\n".join([f"# {self.title}", "", *head, *commands, "", *shown])

    def html(self, draw: Callable[[], Sequence[tuple[str, str]]]) -> str:
        """As one page with the plots, each a title and an SVG text, that `draw` makes.

        Raises
        ------
        UsageError
            matplotlib or jinja2 is missing.
        """
        try:
            import jinja2

            plots = draw()
        except ImportError as error:
            raise UsageError("report", f"{error.name} is missing", hint="pip install 'tvm-sparse[report]'") from None
        environment = jinja2.Environment(autoescape=True, trim_blocks=True, undefined=jinja2.StrictUndefined)
        environment.filters["verdict"] = lambda cell: next((word for word in ("faster", "slower") if word in cell), "")
        return environment.from_string(TEMPLATE.read_text()).render(report=self, plots=plots)
