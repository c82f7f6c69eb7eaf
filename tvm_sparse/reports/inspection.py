"""`inspect`: what is sparse in a model, what limits each layer, what serves it, and what compiling would choose."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from rich.text import Text
from tvm.target import Target

from tvm_sparse.compiler.build_model import Compilation
from tvm_sparse.compiler.plan.expected_gain import shares_of_layers, times_of, verdict_of
from tvm_sparse.compiler.plan.plan import Plan
from tvm_sparse.compiler.plan.reasons import UNMEASURED
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.display import tables
from tvm_sparse.display.live_line import steps
from tvm_sparse.errors import UsageError
from tvm_sparse.frontend.passes.find_convolutions import ConvLayer
from tvm_sparse.frontend.prepare import PreparedModel
from tvm_sparse.frontend.scales import text_of
from tvm_sparse.reports.bottleneck import advise, limit_of
from tvm_sparse.reports.pattern_table import pattern_document, pattern_parts
from tvm_sparse.reports.report import BLANK, Part, Report, of_variants
from tvm_sparse.request.options import CompileOptions, takes
from tvm_sparse.request.request import Request
from tvm_sparse.request.variant import Variant
from tvm_sparse.schedules.lookup import spaces_of
from tvm_sparse.target.resolve import target_json
from tvm_sparse.verdict.worth import Zeros, is_unpruned, worth

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Inspection(Report):
    """What `inspect` found: whether the model is worth compiling, and of each layer what it has and would get."""

    def _parts(self, document: dict[str, Any]) -> Iterator[Part]:
        yield Text(f"worth it: {document['worth_it']}", style="bold")
        yield BLANK
        yield tables.layers(document["model"], document["layers"])
        yield BLANK
        yield from map(Text, document["notes"])
        if "patterns" in document:
            yield BLANK
            yield from pattern_parts(document["patterns"])

    def _details(self, document: dict[str, Any]) -> Iterator[Part]:
        rows = [{**row, "schedules": list(row["schedules"])} for row in document["layers"]]
        columns = {
            "layer": "layer",
            "kind": "kind",
            "shape": "input, filters",
            "structure": "structure",
            "nnz": "non-zeros",
            "dead_filters": "dead filters",
            "dense_mflop": "dense MFLOP",
            "sparse_mflop": "sparse",
            "limit": "limited by",
            "predicted_time_us": "predicted us",
            "schedules": "schedules",
        }
        if all(row["predicted_time_us"] is None for row in rows):
            del columns["predicted_time_us"]
        yield tables.TableView(document["model"], rows, columns)
        yield BLANK
        yield from map(Text, document["details"])
        yield BLANK
        yield from map(Text, tables.detail_lines(rows))
        yield from (Text(f"{row['layer']}: {text_of(row['quantised'])}.") for row in rows if "quantised" in row)
        yield BLANK


@takes(CompileOptions)
def inspect(
    source: Any,
    example_inputs: Any = None,
    *,
    patterns: float | None = None,
    progress: bool | None = None,
    **options: Unpack[CompileOptions],
) -> Inspection:
    """Show what is sparse in a model, whether it is worth compiling, and what would compute each layer.

    Parameters
    ----------
    source, example_inputs
        The model, as `tvm_sparse.compile` takes it.
    patterns
        Also what each pattern of pruning would keep and weigh with this share of zeros, such as 0.9.
    progress
        Whether to show how far it is; None: where standard error is a terminal or Jupyter runs.
    **options
        Of `CompileOptions`.

    Raises
    ------
    ModelError, UsageError, LogError
        The model, an option or the log cannot be used.
    """
    if patterns is not None and not 0 < patterns < 1:
        raise UsageError("patterns", "is no share of zeros", patterns, "a number above 0 and below 1")
    request = Request.of(source, example_inputs, **options)

    def of_one(name: str, _variant: Variant, prepared: PreparedModel) -> dict[str, Any]:
        with steps(progress) as say:
            say("looking at the layers")
            plan = Compilation.of(request, prepared).plan
            found = document(name, plan, request.allow_tf32)
            if patterns is not None:
                found["patterns"] = pattern_document(plan.layers, patterns, plan.target)
                if not is_unpruned(plan):
                    found["notes"].append("It is pruned already: the patterns below would be of what its zeros leave.")
            return found

    return Inspection(of_variants(request, progress, of_one))


def document(model: str, plan: Plan, allow_tf32: bool = False) -> dict[str, Any]:
    """What is known of a plan, as an `Inspection` has it."""
    target, verdict = plan.target, verdict_of(plan, allow_tf32)
    judge = cache(lambda spec, counts, of_model: _judgement(spec, counts, of_model, target))
    rows = []
    expected = zip(plan.pairs, times_of(plan, allow_tf32), shares_of_layers(plan, allow_tf32), strict=True)
    for (layer, decision), times, (share, dense_share) in expected:
        # Where the zeros are changes no judgement, and judging one layer for a GPU takes a second.
        counts = (replace(each, mask_digest="", value_digest="") for each in (layer.pattern, layer.model_pattern))
        row = {**described(layer), **judge(layer.spec, *counts), "chosen": decision.schedule}
        scales = plan.prepared.scales.get(layer.name)
        row |= {"quantised": scales.to_json()} if scales is not None else {}
        row |= {**decision.to_json(), "speedup": times.speedup, "share": share, "dense_share": dense_share}
        rows.append(row)
    zeros = Zeros.of(plan)
    is_to_tune = (verdict.is_worth_it or not is_unpruned(plan)) and any(
        each.reason.kind in UNMEASURED for each in plan.decisions
    )
    return {
        "model": model,
        "target": target_json(target),
        "worth_it": worth(plan, verdict, allow_tf32),
        "verdict": verdict.to_json(),
        "zeros": asdict(zeros),
        "layers": rows,
        "details": _details(rows),
        "notes": [
            *([zeros.text()] if zeros.text() else []),
            *_turns(plan.prepared.turns),
            *_notes(rows, is_to_tune),
        ],
    }


def _turns(turns: int) -> list[str]:
    text = f"A call computes its samples in {turns} turns, so that they stay in the cache; the layers are a turn's."
    return [text] if turns > 1 else []


def described(layer: ConvLayer) -> dict[str, Any]:
    """A layer and what is known of its weight, as JSON; ``convolution`` is the one that kernels compute."""
    pattern = layer.model_pattern
    return {
        "layer": layer.name,
        "kind": layer.kind,
        "convolution": layer.spec.key,
        "shape": layer.shape_text,
        "weights": pattern.size,
        "nnz": pattern.nnz,
        "density": pattern.density,
        "structure": pattern.structure,
        "dead_filters": pattern.dead_filters,
        "dead_channels": pattern.dead_channels,
        "dense_mflop": layer.spec.sparse_flops(pattern.size) / 1e6,
        "sparse_mflop": layer.spec.sparse_flops(pattern.nnz) / 1e6,
    }


def _judgement(spec: ConvSpec, pattern: SparsityPattern, of_model: SparsityPattern, target: Target) -> dict[str, Any]:
    """Which schedules serve a layer, what limits it and what would help, by its zeros in kernels and in the model."""
    found, reasons = spaces_of(spec, pattern, target)
    estimate_us = min((each.estimate_us for each in found if each.estimate_us is not None), default=None)
    limit = limit_of(spec, of_model, target, reasons, estimate_us)
    return {
        "schedules": dict(Counter(each.schedule for each in found)),
        "not_applicable": reasons,
        "limit": limit.kind if limit else None,
        "limit_text": limit.text if limit else None,
        "predicted_time_us": limit.time_us if limit else None,
        "advice": advise(spec, of_model, limit, target),
    }


def _notes(rows: list[dict[str, Any]], is_to_tune: bool) -> list[str]:
    dense_mflop, sparse_mflop = (sum(row[key] for row in rows) for key in ("dense_mflop", "sparse_mflop"))
    notes = []
    if sparse_mflop:
        notes.append(
            f"{len(rows)} layers: {dense_mflop:.4g} MFLOP dense, {sparse_mflop:.4g} without the zeros, "
            f"so their arithmetic runs at most {dense_mflop / sparse_mflop:.3g}x faster for their zeros."
        )
        heaviest = max(rows, key=lambda row: row["sparse_mflop"])
        share = heaviest["sparse_mflop"] / sparse_mflop
        notes.append(f"{heaviest['layer']} does {share:.0%} of what is left, more than any other: look at it first.")
    if is_to_tune:
        notes.append("Nothing was measured for some layers yet: optimize does that, or tune.")
    return notes


def _details(rows: list[dict[str, Any]]) -> list[str]:
    """What limits each layer and what would help, and why schedules serve some of them alone."""
    lines = [
        f"{row['layer']}: {'; '.join([*([row['limit_text']] if row['limit_text'] else []), *row['advice']])}."
        for row in rows
        if row["advice"] or row["predicted_time_us"] is not None
    ]
    reasons = {(name, reason) for row in rows for name, reason in row["not_applicable"].items()}
    return lines + [f"{name} does not serve every layer: {reason}." for name, reason in sorted(reasons)]
