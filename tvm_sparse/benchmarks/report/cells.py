"""A table of the report on Table 2, and how its cells show numbers."""

from collections.abc import Sequence
from dataclasses import dataclass

from tvm_sparse.benchmarks.comparison import median_us
from tvm_sparse.benchmarks.results import Contender
from tvm_sparse.benchmarks.timing import Quartiles

NOTHING = "-"


@dataclass(frozen=True)
class Table:
    """A heading, a sentence or two on how to read it, and rows of cells; a `detail` is on the page with plots alone."""

    title: str
    note: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    detail: bool = False

    def markdown(self) -> str:
        """As Markdown; a sentence where there are no rows."""
        lines = [f"## {self.title}", "", self.note, ""]
        if not self.rows:
            return "\n".join([*lines, "Not measured.", ""])
        lines += [_row(self.header), "|" + "---|" * len(self.header), *map(_row, self.rows)]
        return "\n".join([*lines, ""])


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def median(contender: Contender | None) -> str:
    """Median microseconds, cold."""
    return NOTHING if contender is None else f"{median_us(contender):.4g}"


def time(contender: Contender | None) -> str:
    """Median microseconds with quartiles, cold."""
    return NOTHING if contender is None else with_quartiles(contender.cold_us)


def with_quartiles(times_us: Sequence[float]) -> str:
    """Median and quartiles."""
    found = Quartiles.of(times_us)
    return f"{found.median:.4g} ({found.low:.4g}-{found.high:.4g})"


def kib(number: int) -> str:
    """Bytes as KiB."""
    return f"{number / 1024:.1f} KiB"
