"""``compile``: a model and a tuning log to an artifact."""

import argparse
from typing import Any

from rich.console import Console

from tvm_sparse.cli import common
from tvm_sparse.compiler import build_model

show, show_more = common.show_saved, common.show_reasons


def run(arguments: argparse.Namespace, _console: Console) -> dict[str, Any]:
    """The document: where the artifact is, how it compares with the model, and the decision table."""
    words = {"progress": True, "compare": arguments.compare}
    return common.saved(arguments, build_model.compile(arguments.model, **words, **common.options_of(arguments)))
