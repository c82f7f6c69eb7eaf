"""Tables of the command line."""

import io

from factories import SPEC
from rich.console import Console

from tvm_sparse.cli import tables
from tvm_sparse.display.consoles import PLAIN_WIDTH


def test_a_table_keeps_markup_and_long_names():
    plain = Console(file=io.StringIO(), width=PLAIN_WIDTH)
    rows = [{"name": f"[bold]{SPEC.key}", "value": 1.5}, {"name": "x", "value": None}]
    plain.print(tables.table("Title", rows, {"name": "name", "value": "us"}))
    assert [line.split() for line in plain.file.getvalue().splitlines()] == [
        ["Title"],
        ["name", "us"],
        [f"[bold]{SPEC.key}", "1.5"],
        ["x", "-"],
    ]
