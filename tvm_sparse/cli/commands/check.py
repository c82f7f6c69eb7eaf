"""``check``: see `tvm_sparse.check`."""

import argparse

from rich.console import Console

from tvm_sparse.cli import common
from tvm_sparse.reports.checking import Check, check


def run(arguments: argparse.Namespace, _console: Console) -> Check:
    """What `check` finds."""
    words = {"inputs": arguments.input, "seed": arguments.seed, "progress": True}
    return check(arguments.model, **words, **common.options_of(arguments))
