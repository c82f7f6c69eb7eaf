"""``report``: see `tvm_sparse.report`."""

import argparse
from typing import Any

from rich.console import Console
from rich.text import Text

from tvm_sparse.cli import common
from tvm_sparse.errors import UsageError
from tvm_sparse.files import publish
from tvm_sparse.reports.page import report


def run(arguments: argparse.Namespace, _console: Console) -> dict[str, Any]:
    """The document: where the page is."""
    page = report(arguments.model, trust=arguments.trust, progress=True, **common.options_of(arguments))
    try:
        publish.write(arguments.output, page.encode(errors="backslashreplace"))
    except OSError as error:
        path, hint = str(arguments.output), "choose another --output"
        raise UsageError(path, f"cannot be written ({error.strerror})", hint=hint) from error
    return {"model": str(arguments.model), "page": str(arguments.output)}


def show(document: dict[str, Any], console: Console) -> None:
    """Where to look."""
    console.print(Text(f"written: {document['page']}; open it in a browser"))
