"""What limits a layer follows from its shape and zeros, and the advice says what would help."""

import dataclasses
import statistics
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from random_convolutions import random_weight

from tvm_sparse.compiler.plan.kernel_selection import decide
from tvm_sparse.compiler.plan.plan import Plan
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.frontend.passes.find_convolutions import ConvLayer
from tvm_sparse.reports import inspection
from tvm_sparse.reports.bottleneck import PAYS_BELOW, Limit, advise, limit_of
from tvm_sparse.schedules.lookup import spaces_of
from tvm_sparse.target.resolve import resolve_target

TARGET = resolve_target('{"kind":"llvm","mcpu":"znver4","num-cores":1}')
MAP = ConvSpec(1, 64, 56, 56, 64, 3, 3, padding=(1, 1, 1, 1))
SMALL = dataclasses.replace(MAP, c=512, k=512, h=7, w=7)
POINTWISE = dataclasses.replace(MAP, r=1, s=1, padding=(0, 0, 0, 0))


def look(spec, density, structure="unstructured", target=TARGET):
    weight = random_weight(spec, density, structure, 0, False)
    pattern = SparsityPattern.of(weight)
    _, reasons = spaces_of(spec, pattern, target)
    limit = limit_of(spec, pattern, target, reasons)
    return limit, " ".join(advise(spec, pattern, limit, target))


@pytest.mark.parametrize(
    ("spec", "density", "kind", "text", "advice"),
    [
        (MAP, 0.1, "arithmetic", "one multiply-add for each non-zero", ""),
        (MAP, 1.0, "density", "100% of its weights are left", "it is not pruned"),
        (
            MAP,
            0.7,
            "density",
            "70% of its weights",
            "prune it more, or not at all: most layers gain from zeros below a density of about 0.4",
        ),
        (MAP, 0.0, "memory", "all its weights are zero", "64 of its filters are all zero"),
        (POINTWISE, 0.02, "memory", "operations for each byte", "more zeros will not make it faster"),
        (SMALL, 0.2, "code size", "too many to fold", "at a density of 0.13"),
        (dataclasses.replace(SMALL, c=64, k=64), 0.1, "vectors", r"a 7x7 map fills", ""),
    ],
)
def test_limits(spec, density, kind, text, advice):
    limit, said = look(spec, density)
    assert limit.kind == kind
    assert text in limit.text
    assert advice in said if advice else said == ""


def column(page, section, heading):
    """A column of a table in docs/results, by the last such heading."""
    _, _, text = (Path(__file__).parents[2] / "docs" / "results" / page).read_text().partition(section)
    head, _, *rows = [line for line in text.split("\n\n## ")[0].splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.split("|")] for line in (head, *rows)]
    index = len(cells[0]) - 1 - cells[0][::-1].index(heading)
    return [row[index] for row in cells[1:]]


def test_the_density_below_which_zeros_pay_is_the_measured_one():
    ratios = [float(cell.split("x")[0]) for cell in column("table2-znver5.md", "## 1 thread", "against the best")]
    assert len(ratios) == 10
    assert round(statistics.median(0.1 * ratio for ratio in ratios), 1) == PAYS_BELOW["llvm"]
    found = column("table2-h200.md", "## Density", "up to")
    overtaken = [float(cell) for cell in found if not cell.startswith("over")]
    assert (len(found), len(overtaken), min(overtaken), max(overtaken)) == (20, 10, 0.1, 0.35)
    assert round(statistics.median(overtaken), 1) == PAYS_BELOW["cuda"]


def test_dead_filters_and_channels():
    weight = random_weight(MAP, 0.2, "unstructured", 0, False)
    weight[:5], weight[:, :7] = 0, 0
    said = " ".join(advise(MAP, SparsityPattern.of(weight), None, TARGET))
    assert "5 of its filters are all zero" in said
    assert "7 of its input channels are never read" in said


def test_other_targets_have_no_limit_here():
    assert look(MAP, 0.1, target=resolve_target("cuda"))[0] is None


def test_a_predicted_time_is_shown(monkeypatch):
    weight = random_weight(MAP, 0.1, "unstructured", 0, False)
    layers = [ConvLayer("conv", MAP, weight, None), ConvLayer("other", MAP, np.zeros_like(weight), None)]
    monkeypatch.setattr(inspection, "limit_of", lambda *_: Limit("roof", "of something", 12.5))
    graph = SimpleNamespace(definitions={})
    prepared = SimpleNamespace(
        layers=layers,
        as_given=SimpleNamespace(layers=layers),
        removed=(0, 0),
        graph=graph,
        groups=(),
        turns=1,
        scales={},
    )
    plan = Plan.of(prepared, decide(layers, TARGET, None, predict=True), TARGET)
    found = inspection.document("m.onnx", plan)
    assert [row["predicted_time_us"] for row in found["layers"]] == [12.5, 12.5]
    assert any("conv does 100% of what is left" in note for note in found["notes"])
    text = inspection.Inspection(found).table(details=True)
    assert "predicted us" in text and "12.5" in text
    assert "other: of something; 64 of its filters are all zero" in text
