"""Rows of whole models: what is timed beside ours, what a broken rival leaves, and files that several runs fill."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from row_processes import breaking, row_of
from torch import nn

from benchmarks.models import measure, row_process, torch_models
from benchmarks.models.measure import Bench
from benchmarks.models.rivals import call_of
from benchmarks.models.row import MODES, Case, Rival, Way, fastest_us, ways
from benchmarks.models.unet import UNet
from benchmarks.report import model_rows
from benchmarks.report.row_file import RowFile
from tvm_sparse.conv.structure import Structure
from tvm_sparse.errors import UsageError, VerificationError

TARGET = '{"kind":"llvm","opt-level":0,"num-cores":1}'
EAGER = Way("eager", "tf32", "nhwc")
GRAPH = Way("graph", "tf32", "nhwc")
COMPILED = Way("reduce-overhead", "tf32", "nhwc")
CASE = Case("small", 2, 0.1, image=16, target=TARGET, ways=(GRAPH, EAGER))


@pytest.fixture(autouse=True)
def network(monkeypatch):
    """Two convolutions in place of torchvision's networks."""

    def made(name, density, pattern):
        torch.manual_seed(0)
        layers = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3)).eval()
        layers[2].weight.data *= torch.rand_like(layers[2].weight) < density
        return layers

    monkeypatch.setattr(torch_models, "network", made)


def test_the_ways_of_torch():
    """Graphs of both layouts first, as they are quickly made, and the mode that times candidates last."""
    found = ways(MODES, ["tf32", "fp16"])
    assert len({each.name for each in found}) == len(found) == 4 + 2 + 4
    assert [each.is_compiled for each in found] == [False] * 6 + [True] * 4
    assert [each.name for each in found[-2:]] == ["max-autotune tf32 nhwc", "max-autotune fp16 nhwc"]


def test_rows_on_this_machine():
    """Ours and what torch can do here are timed; what needs a GPU leaves its reason."""
    said = []
    (row,) = Bench(CASE, {}, said.append).rows()
    graph, eager = row.rivals
    assert graph.time_us is None and "CUDA" in graph.failure
    assert eager.time_us > 0 and eager.build_s > 0 and eager.max_relative_error < 1e-5 and not eager.failure
    assert row.ours_us > 0 and row.max_relative_error < 1e-5 and row.ours_exact and len(row.layers) == 2
    assert row.torch_us["torch_eager_tf32_us"] == eager.time_us and row.torch_us["torch_tf32_us"] is None
    assert said == [GRAPH.name, "", EAGER.name, ""]
    checked = row.to_json()
    model_rows._check(Path("rows.json"), "row", checked, model_rows.FIELDS)
    assert json.loads(json.dumps(checked))["rivals"][0] == {
        **{"how": "graph", "precision": "tf32", "layout": "nhwc", "time_us": None, "build_s": None},
        **{"max_relative_error": None, "failure": graph.failure},
    }


def test_what_is_not_tried():
    """A rival that broke a process before, and what would be compiled after the time is spent."""
    case = replace(CASE, ways=(EAGER, COMPILED), until_s=-math.inf, again=False)
    (row,) = Bench(case, {EAGER.name: "its process ended"}, lambda _: None).rows()
    assert [each.failure for each in row.rivals] == ["its process ended", measure.NO_TIME]
    assert row.cached_compile_s is None


def test_wrong_outputs_do_not_count(monkeypatch):
    monkeypatch.setattr(measure, "call_of", lambda way, module, x: lambda: module(x) * 1.1)
    (row,) = Bench(CASE, {}, lambda _: None).rows()
    assert {each.time_us for each in row.rivals} == {None}
    assert all("differs from float64 by" in each.failure for each in row.rivals)
    monkeypatch.setitem(measure.MAX_RELATIVE_ERROR, "float32", 1e-12)
    with pytest.raises(VerificationError, match=r"small, batch 2, density 0\.1, exact.* differs from float64"):
        Bench(CASE, {}, lambda _: None).rows()


def test_the_fastest_of_torch():
    times_us = {"reduce-overhead": 5.0, "max-autotune": 4.0, "graph": 7.0}
    rivals = [Rival(Way(how, "tf32", layout), us) for how, us in times_us.items() for layout in ("nchw", "nhwc")]
    found = fastest_us([*rivals, Rival(Way("graph", "fp16", "nchw"), failure="no")])
    assert found["torch_tf32_us"] == 7.0 and found["torch_compile_tf32_us"] == 4.0
    assert found["torch_fp16_us"] is None and found["torch_compile_fp16_us"] is None


@pytest.mark.parametrize("density", [0.05, 0.1, 0.5])
def test_densities_by_layer(density):
    """Small layers stay whole, larger ones have fewer of their weights, and all have the share that was asked for."""
    shapes = [(64, 64, 1, 1), (64, 64, 3, 3), (512, 512, 3, 3), (2048, 512, 1, 1)]
    found = torch_models.erk_densities(shapes, density)
    sizes = [math.prod(each) for each in shapes]
    assert sum(map(math.prod, zip(found, sizes, strict=True))) == pytest.approx(density * sum(sizes))
    assert 1 >= found[0] >= found[1] > found[2] == min(found)
    assert torch_models.erk_densities(shapes, 1.0) == pytest.approx([1.0] * 4)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Conv2d(8, 16, 3), (4, 8, 18, 18)),
        (nn.Conv3d(8, 16, 3), (1, 8, 10, 12, 12)),
        (nn.ConvTranspose2d(16, 8, 2, 2), (4, 16, 16, 16)),
    ],
)
def test_weights_of_every_rank_keep_the_energy(layer, shape):
    """Of what has passed a ReLU, at any density."""
    torch.manual_seed(0)
    torch_models._draw(layer, 0.25, Structure.named("unstructured"))
    assert layer.weight.count_nonzero() == layer.weight.numel() / 4
    with torch.no_grad():
        assert layer(torch.randn(shape).relu()).var().item() == pytest.approx(1, rel=0.25)


def test_unet_keeps_the_size_of_its_images():
    with torch.device("meta"):
        assert UNet()(torch.empty(2, 3, 32, 48)).shape == (2, 2, 32, 48)


def test_films_have_channels_last_too():
    x = torch_models.images("r3d_18", 1, 8)
    assert x.shape == (1, 3, 16, 8, 8)
    assert call_of(EAGER, nn.Identity(), x)().is_contiguous(memory_format=torch.channels_last_3d)


@pytest.mark.conformance
def test_torch_compile_on_this_machine():
    """Both modes are built, right and timed; what caches were filled with is compiled again for the row."""
    bench = Bench(replace(CASE, ways=ways(MODES, ["fp32", "fp16"]), side_by_side=True), {}, lambda _: None)
    bench.fill_caches()
    (row,) = bench.rows()
    compiled = {each.way.name: each for each in row.rivals if each.way.is_compiled}
    assert not any(each.failure for each in compiled.values()) and len(compiled) == 4
    assert row.torch_us["torch_compile_fp32_us"] == min(compiled[f"{mode} fp32 nhwc"].time_us for mode in MODES)
    assert row.memory_bytes is None


def test_a_rival_that_breaks_its_process_loses_no_row(monkeypatch):
    monkeypatch.setattr(row_process, "WAY_S", 0.2)
    kept = []
    cases = [CASE, replace(CASE, model="wrong"), replace(CASE, model="broken")]
    lost = row_process.measured(cases, 3, 60.0, kept.append, breaking)
    ((row,),) = kept
    assert [each.failure for each in row.rivals] == ["its process ended with code -9", "took more than 0 s"]
    assert len(lost) == 2 and "wrong: it differs" in lost[0] and "ended with code 3" in lost[1]


def test_no_case_begins_after_the_budget():
    kept = []
    assert row_process.measured([CASE], 1, -1.0, kept.append, breaking) == [
        "small, batch 2, density 0.1: not begun, the budget was spent"
    ]
    assert not kept


def test_several_runs_fill_a_file(tmp_path):
    path = tmp_path / "rows.json"
    first, other = row_of(CASE, {}).to_json(), row_of(replace(CASE, batch=64), {}).to_json()
    RowFile(path).add([first])
    RowFile(path).add([other, {**first, "ours_us": 5.0}])
    assert json.loads(path.read_text()) == {"rows": [{**first, "ours_us": 5.0}, other]}
    assert [each.rows["exact"]["ours_us"] for each in model_rows.load([path])] == [5.0, 10.0]
    path.write_text("{}")
    with pytest.raises(UsageError, match="holds no rows"):
        RowFile(path)
