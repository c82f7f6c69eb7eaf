"""A table of the report on Table 2, and how its cells show numbers."""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.comparison import CUDNN_FP16, CUDNN_FP32, CUDNN_TF32, EXACT, Comparison, median_us
from benchmarks.results import Contender, Kind
from tvm_sparse.measure.quartiles import Quartiles

NOTHING = "-"
# Columns of the tables of verdicts.
BASELINES = {
    "cuDNN float32": CUDNN_FP32,
    "cuDNN, TF32 allowed": CUDNN_TF32,
    "cuDNN float16": CUDNN_FP16,
    "best exact baseline": EXACT,
}


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


def median(contender: Contender | None, kind: Kind = "cold") -> str:
    """Median microseconds."""
    return NOTHING if contender is None else f"{median_us(contender, kind):.4g}"


def time(contender: Contender | None, kind: Kind = "cold") -> str:
    """Median microseconds with quartiles."""
    return NOTHING if contender is None else with_quartiles(contender.times_us(kind))


def verdict(found: Comparison | None, kind: Kind = "cold", name: str = "") -> str:
    """A baseline's `name` and time, how many times as fast ours is, and whether rounds agree."""
    if found is None:
        return NOTHING
    return f"{name} {median(found.baseline, kind)}: **{found.ratio.median:.2f}x** {found.verdict}".lstrip()


def with_quartiles(times_us: Sequence[float]) -> str:
    """Median and quartiles."""
    found = Quartiles.of(times_us)
    return f"{found.median:.4g} ({found.low:.4g}-{found.high:.4g})"


def kib(number: int) -> str:
    """Bytes as KiB."""
    return f"{number / 1024:.1f} KiB"
