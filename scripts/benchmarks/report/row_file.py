"""A file of rows of whole models, which several runs fill."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.report.model_rows import Row, key_of, rows_of
from tvm_sparse.files import publish


class RowFile:
    """Rows in a file, which may be there already; UsageError where it is, and has no rows."""

    def __init__(self, path: Path):
        self._path = path
        self._rows = {key_of(row): row for row in (rows_of(path) if path.exists() else [])}

    def add(self, rows: Iterable[Row]) -> None:
        """Write `rows` too, each in the place of one of the same network and way."""
        self._rows |= {key_of(row): row for row in rows}
        text = ",\n".join(map(_text, self._rows.values()))
        publish.write(self._path, f'{{\n"rows": [\n{text}\n]\n}}\n'.encode())


def _text(row: Row) -> str:
    """A line for each field, and for each layer."""
    return "{\n" + ",\n".join(f"{json.dumps(name)}: {_value(value)}" for name, value in row.items()) + "\n}"


def _value(value: Any) -> str:
    if not isinstance(value, list) or not value:
        return json.dumps(value)
    return "[\n" + ",\n".join(map(json.dumps, value)) + "\n]"
