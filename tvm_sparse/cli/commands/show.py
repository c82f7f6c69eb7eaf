"""``show``: the kernel that compiling would take for a layer, at one stage of its making."""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rich.console import Console
from tvm.target import Target

from tvm_sparse.cli import common
from tvm_sparse.codegen.kernel_stages import stage_names, stages
from tvm_sparse.compiler.build_model import Compilation
from tvm_sparse.compiler.building.make_kernels import kernels_of
from tvm_sparse.compiler.layouts.blocked_layers import blocked_kernel
from tvm_sparse.compiler.plan.choice import Default
from tvm_sparse.compiler.plan.decision import Decision
from tvm_sparse.compiler.plan.joined_layers import Joined, joined_kernel, joined_pairs
from tvm_sparse.compiler.plan.reasons import ASKED_FOR
from tvm_sparse.conv.nchwc import NCHW
from tvm_sparse.errors import UsageError, printable
from tvm_sparse.frontend.passes.find_convolutions import ConvLayer
from tvm_sparse.reports.inspection import described
from tvm_sparse.schedules.lookup import find_space
from tvm_sparse.target.resolve import target_json

# What begins a comment in the text of a stage; "#" in TVMScript.
COMMENTS = {"cuda": "//", "llvm": ";"}
# Of a kernel, in a terminal.
MOST_LINES = 150


def run(arguments: argparse.Namespace, _console: Console) -> dict[str, Any]:
    """The document: what is known of the kernel, and the text of the stage."""
    request = common.request_of(arguments)
    target = request.resolved
    *_, source = names = stage_names(target)
    stage = arguments.stage or source
    if stage not in names:
        raise UsageError("--stage", f"target {target.kind.name} has no such stage", stage, ", ".join(names))
    prepared = request.prepared(request.variants[0])
    layer = _layer(prepared.layers, arguments.layer)
    # Of all layers: how the tensors of one lie in memory depends on its neighbours.
    plan = Compilation.of(request, prepared).plan
    pairs = joined_pairs(plan.layers, plan.decisions)
    pair = next((each for each in pairs if layer.name in (each.expansion.name, each.layer.name)), None)
    decisions = [each for each in plan.decisions if each.layer == layer.name]
    if arguments.schedule:
        pair = None
        choice = Default(arguments.schedule)
        decisions = [replace(decisions[0], choice=choice, reason=ASKED_FOR, joins=None, layouts=NCHW)]
    return {"model": str(arguments.model), **_document(layer, decisions, target, stage, pair)}


def _layer(layers: Sequence[ConvLayer], name: str | None) -> ConvLayer:
    """That of a name, or the one of which most is left to compute."""
    found = [layer for layer in layers if name in (None, layer.name)]
    if not found:
        raise UsageError("--layer", "not in the model", name, ", ".join(layer.name for layer in layers) or "none")
    return max(found, key=lambda layer: layer.spec.sparse_flops(layer.pattern.nnz))


def _document(
    layer: ConvLayer,
    decisions: list[Decision],
    target: Target,
    stage: str,
    pair: Joined | None,
) -> dict[str, Any]:
    if pair is not None:
        space, kernel = joined_kernel(pair, target)
    elif decisions[0].layouts.has_blocks:
        space, kernel = blocked_kernel(layer, decisions[0], target)
    else:
        # May replace the decision by a dense one.
        kernel = kernels_of([layer], decisions, target)[layer.name]
        space = find_space(decisions[0].schedule, layer.spec, layer.pattern, target)
    (decision,) = decisions
    record = decision.record if pair is None and not decision.layouts.has_blocks else None
    return {
        **described(layer),
        "target": target_json(target),
        "schedule": space.name,
        "decisions": record.decisions if record is not None else None,
        "reason": decision.to_json()["reason"],
        "stage": stage,
        "text": stages(space, kernel, target)[stage](),
    }


def show(document: dict[str, Any], console: Console) -> None:
    """What is known of the kernel as comments, then the text: as it is, not laid out; of a long one its beginning."""
    head = (
        f"layer {document['layer']}: {document['shape']}",
        f"density {document['density']:.3g}, {document['nnz']} of {document['weights']} weights, "
        f"{document['structure']}",
        f"schedule {document['schedule']}, {_decisions_text(document['decisions'])}",
        f"chosen because: {document['reason']}",
    )
    mark = COMMENTS.get(document["stage"], "#")
    console.file.write("".join(f"{mark} {printable(line)}\n" for line in head))
    lines = document["text"].splitlines(keepends=True)
    shown = MOST_LINES if console.is_terminal else len(lines)
    console.file.write("".join(lines[:shown]))
    if len(lines) > shown:
        console.file.write(f"{mark} {len(lines) - shown} more lines: send the output to a file or a pager for all\n")


def _decisions_text(decisions: Any) -> str:
    """Decisions by name; of others, a trace, only that there is one."""
    if not decisions:
        return "default decisions"
    if not isinstance(decisions, dict):
        return "decisions of a MetaSchedule trace"
    return ", ".join(f"{name} {value}" for name, value in decisions.items())
