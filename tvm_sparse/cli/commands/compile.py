"""``compile``: a model and a tuning log to an artifact."""

import argparse
from typing import Any

from rich.console import Console
from rich.text import Text

from tvm_sparse.cli import common
from tvm_sparse.compiler import build_model
from tvm_sparse.compiler.building import build_progress
from tvm_sparse.display import tables
from tvm_sparse.runtime.artifacts import artifact
from tvm_sparse.target.compatibility import why_not_here


def run(arguments: argparse.Namespace, console: Console) -> dict[str, Any]:
    """The document: where the artifact is, how it compares with the model, and the decision table."""
    log = common.log_to_read(arguments, console)
    options = {
        "log": log,
        "shapes": dict(arguments.input_shape),
        "strict_nonfinite": arguments.strict_nonfinite,
        "allow_tf32": arguments.allow_tf32,
        "batch": arguments.batch,
        "dtype": arguments.dtype,
        "compare": common.wants_comparison(arguments),
    }
    with build_progress.shown(console) as on_progress:
        target = arguments.target
        compiled = build_model.compile(arguments.model, None, target, progress=on_progress, **options)
    folder = artifact.save(compiled, arguments.output)
    return {
        "artifact": str(folder),
        "comparison": common.comparison_of(compiled),
        "unverified": why_not_here(compiled.target) or None,
        "layers": compiled.report(),
        "verdicts": common.verdicts_of(compiled),
    }


def show(document: dict[str, Any], console: Console) -> None:
    """The decision table, the comparison, and where the artifact is."""
    console.print(tables.layers("What computes each layer", document["layers"]))
    console.print()
    common.show_comparison(document, console)
    if document["unverified"]:
        console.print(Text(f"nothing was run or verified here: {document['unverified']}"))
    console.print(Text(f"written: {document['artifact']}"))
    common.show_verdicts(document["verdicts"], console)


def show_more(document: dict[str, Any], console: Console) -> None:
    """Of each layer why it has its kernel."""
    common.show_details(document["layers"], console)
