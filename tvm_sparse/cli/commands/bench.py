"""``bench``: see `tvm_sparse.bench`."""

import argparse

from rich.console import Console

from tvm_sparse.cli import common
from tvm_sparse.reports.benchmark import Benchmark, bench


def run(arguments: argparse.Namespace, _console: Console) -> Benchmark:
    """What `bench` finds."""
    words = {"repeat": arguments.repeat, "seed": arguments.seed, "trust": arguments.trust, "progress": True}
    return bench(arguments.model, **words, **common.options_of(arguments))
