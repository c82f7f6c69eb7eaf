"""``optimize``: a model to a faster artifact, within a time."""

import argparse
from typing import Any

from rich.console import Console
from rich.text import Text

from tvm_sparse.cli import common
from tvm_sparse.display import tables
from tvm_sparse.logs.known_logs import known_log
from tvm_sparse.optimizer.picture import LivePicture
from tvm_sparse.optimizer.session import optimize
from tvm_sparse.runtime.artifacts import artifact
from tvm_sparse.target.resolve import resolve_target


def run(arguments: argparse.Namespace, console: Console) -> dict[str, Any]:
    """The document: where artifact and log are, how the model compares with its source, and the decision table."""
    target = resolve_target(arguments.target)
    log = common.reported(console, known_log(target, *arguments.tuning_records))
    options = {
        "shapes": dict(arguments.input_shape),
        "allow_tf32": arguments.allow_tf32,
        "batch": arguments.batch,
        "dtype": arguments.dtype,
        "compare": common.wants_comparison(arguments),
        "stop": arguments.signals.stop,
    }
    before = len(log.records)
    compiled = optimize(arguments.model, None, arguments.minutes, target, log, progress=LivePicture(console), **options)
    # The model is there: to write it takes no time worth giving it up for.
    arguments.signals.finish()
    folder = artifact.save(compiled, arguments.output)
    return {
        "artifact": str(folder),
        "log": str(log.path),
        "trials": len(log.records) - before,
        "comparison": common.comparison_of(compiled),
        "layers": compiled.report(),
        "verdicts": common.verdicts_of(compiled),
    }


def show(document: dict[str, Any], console: Console) -> None:
    """The decision table, the comparison, and where everything is."""
    console.print(tables.layers("What computes each layer", document["layers"]))
    console.print()
    common.show_comparison(document, console)
    console.print(Text(f"written: {document['artifact']}; {document['trials']} trials added to {document['log']}"))
    common.show_verdicts(document["verdicts"], console)


def show_more(document: dict[str, Any], console: Console) -> None:
    """Of each layer why it has its kernel."""
    common.show_details(document["layers"], console)
