"""Report: what was found, as JSON values, and as people read it in a terminal, in Python and in a notebook."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from html import escape
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from tvm_sparse.display.consoles import plain_text
from tvm_sparse.display.live_line import steps
from tvm_sparse.display.tables import TableView
from tvm_sparse.errors import TvmSparseError
from tvm_sparse.frontend.prepare import PreparedModel
from tvm_sparse.request.request import Request
from tvm_sparse.request.variant import Variant
from tvm_sparse.target.resolve import target_json

Part = TableView | Text
BLANK = Text("")


class Report(ABC):
    """What a function found; its ``repr`` is what the command of the same name prints.

    Parameters
    ----------
    document
        JSON values. Of several batches or sizes ``variants`` has one such document each.
    """

    def __init__(self, document: dict[str, Any]):
        self._document = document

    def to_json(self) -> dict[str, Any]:
        """All that is known, as JSON values: what the command prints with ``--json``."""
        return self._document

    def table(self, details: bool = False) -> str:
        """The tables and lines as text; with `details` those first that the command prints with ``-v`` only."""
        return plain_text(*(self.details() if details else ()), *self._whole())

    @property
    def failure(self) -> TvmSparseError | None:
        """What is wrong; the command ends with it."""
        return None

    def parts(self) -> Iterator[Part]:
        """What everybody sees."""
        for each in self._documents:
            yield from self._parts(each)

    def details(self) -> Iterator[Part]:
        """What is to be seen before that, on request."""
        for each in self._documents:
            yield from self._details(each)

    def _whole(self) -> Iterator[Part]:
        """What everybody sees, and what is wrong, which the command line says as it says all errors."""
        yield from self.parts()
        if self.failure is not None:
            yield Text(str(self.failure), style="bold")

    @abstractmethod
    def _parts(self, document: dict[str, Any]) -> Iterator[Part]:
        """Those of one variant."""

    def _details(self, _document: dict[str, Any]) -> Iterator[Part]:
        return iter(())

    @property
    def _documents(self) -> list[dict[str, Any]]:
        return self._document.get("variants", [self._document])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from self.parts()

    def __repr__(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        return "".join(
            each.html() if isinstance(each, TableView) else f"<pre>{escape(each.plain)}</pre>" for each in self._whole()
        )


def of_variants(
    request: Request, progress: bool | None, of_one: Callable[[str, Variant, PreparedModel], dict[str, Any]]
) -> dict[str, Any]:
    """The document of a request, or where batches or sizes were asked for one each.

    `of_one` makes it of the model's name, a variant and the model.
    """
    is_file = isinstance(request.source, str | Path)
    model = str(request.source) if is_file else type(request.source).__name__
    found = []
    for variant in request.variants:
        with steps(progress) as say:
            say("reading the model")
            prepared = request.prepared(variant)
        name = f"{model}, {variant.name}" if variant.name else model
        found.append(({"variant": variant.name} if variant.name else {}) | of_one(name, variant, prepared))
    if not request.variants[0].name:
        return found[0]
    return {"model": model, "target": target_json(request.resolved), "variants": found}
