"""What several commands do with their arguments."""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from tvm_sparse.display import tables
from tvm_sparse.logs.fetching import is_folder
from tvm_sparse.logs.tuning_log import NO_FILE
from tvm_sparse.request.options import CompileOptions
from tvm_sparse.request.request import Request
from tvm_sparse.runtime.artifacts import manifest
from tvm_sparse.runtime.comparison import Comparison
from tvm_sparse.runtime.multi_shape_model import AnyModel, MultiShapeModel
from tvm_sparse.target.compatibility import why_not_here


def options_of(arguments: argparse.Namespace) -> CompileOptions:
    """What `tvm_sparse.compile` and others are given."""
    return {
        "target": arguments.target,
        "threads": arguments.threads,
        # The first file of a log may be missing; none that was asked for may.
        "log": arguments.log if all(map(is_folder, arguments.log)) else [NO_FILE, *arguments.log],
        "shapes": _shapes(arguments.input_shape),
        "batch": getattr(arguments, "batch", None),
        "dtype": arguments.dtype,
        "samples": arguments.samples,
        "allow_tf32": arguments.allow_tf32,
        "strict_nonfinite": getattr(arguments, "strict_nonfinite", False),
    }


def _shapes(given: Sequence[tuple[str, tuple[int, ...]]]) -> dict[str, list[tuple[int, ...]]]:
    """Shapes by input, several where an input was named more than once."""
    return {name: [shape for other, shape in given if other == name] for name, _ in given}


def request_of(arguments: argparse.Namespace) -> Request:
    """The model with them."""
    return Request.of(arguments.model, None, **options_of(arguments))


def saved(arguments: argparse.Namespace, compiled: AnyModel) -> dict[str, Any]:
    """The document of a model that was compiled, which is saved: where it is, and all that is known of it."""
    models = compiled.models.values() if isinstance(compiled, MultiShapeModel) else [compiled]
    artifact = compiled.save(arguments.output)
    return {
        "artifact": str(artifact),
        "sha256": manifest.read(artifact)["digest"],
        "comparison": compiled.comparison.to_json() if compiled.comparison is not None else None,
        "unverified": why_not_here(compiled.target) or None,
        "layers": compiled.report(),
        "verdicts": [each.verdict.to_json() for each in models if each.verdict is not None],
    }


def show_saved(document: Mapping[str, Any], console: Console) -> None:
    """The decision table, the comparison, where everything is, and the verdict."""
    console.print(tables.layers("What computes each layer", document["layers"]))
    console.print()
    if document["comparison"] is not None:
        console.print(Text(Comparison(**document["comparison"]).text()))
    if document["unverified"]:
        console.print(Text(f"nothing was run or verified here: {document['unverified']}"))
    added = f"; {document['trials']} trials added to {document['log']}" if "trials" in document else ""
    console.print(Text(f"written: {document['artifact']}{added}"))
    console.print(Text(f"sha256: {document['sha256']}"))
    show_verdicts(document["verdicts"], console)


def show_reasons(document: Mapping[str, Any], console: Console) -> None:
    """A line each layer: its kernel, and why that one."""
    for line in tables.detail_lines(document["layers"]):
        console.print(Text(line))
    console.print()


def show_verdicts(verdicts: Sequence[Mapping[str, Any]], console: Console) -> None:
    """A line each, the last of what a command says."""
    for each in verdicts:
        console.print(Text(each["line"], style="bold"))
