"""``verify``: see `tvm_sparse.verify`."""

import argparse

from rich.console import Console

from tvm_sparse.reports.verification import Verification, verify


def run(arguments: argparse.Namespace, _console: Console) -> Verification:
    """What `verify` finds."""
    return verify(arguments.artifact, sha256=arguments.sha256)
