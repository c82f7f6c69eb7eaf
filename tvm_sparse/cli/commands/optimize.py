"""``optimize``: a model to a faster artifact, within a time."""

import argparse
from typing import Any

from rich.console import Console

from tvm_sparse.cli import common
from tvm_sparse.logs.known_logs import known_log
from tvm_sparse.optimizer.session import optimize

show, show_more = common.show_saved, common.show_reasons


def run(arguments: argparse.Namespace, _console: Console) -> dict[str, Any]:
    """The document: where artifact and log are, how the model compares with its source, and the decision table."""
    options = common.options_of(arguments)
    options["log"] = log = known_log(common.request_of(arguments).resolved, *arguments.log)
    before = len(log.records)
    words = {"minutes": arguments.minutes, "compare": arguments.compare, "progress": True}
    compiled = optimize(arguments.model, **words, stop=arguments.signals.stop, **options)
    # The model is there: to write it takes no time worth giving it up for.
    arguments.signals.finish()
    return {"log": str(log.path), "trials": len(log.records) - before, **common.saved(arguments, compiled)}
