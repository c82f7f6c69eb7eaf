"""``inspect``: see `tvm_sparse.inspect`."""

import argparse

from rich.console import Console

from tvm_sparse.cli import common
from tvm_sparse.reports.inspection import Inspection, inspect


def run(arguments: argparse.Namespace, _console: Console) -> Inspection:
    """What `inspect` finds."""
    return inspect(arguments.model, patterns=arguments.patterns, progress=True, **common.options_of(arguments))
