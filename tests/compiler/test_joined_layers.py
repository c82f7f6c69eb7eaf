"""An expansion that the kernel of the depthwise layer behind it computes too: found, decided, replaced, right."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import onnx
import pytest
import torch
import zoo
from torch import nn
from tvm.target import Target

from tvm_sparse.cli import main
from tvm_sparse.compiler.build_model import build
from tvm_sparse.compiler.build_plan import kernels_of
from tvm_sparse.compiler.building.library_cache import LibraryCache
from tvm_sparse.compiler.checking.layer_check import Exposed
from tvm_sparse.compiler.pipeline import decide_together
from tvm_sparse.compiler.plan.choice import Default, Predicted
from tvm_sparse.compiler.plan.decision import Decision
from tvm_sparse.compiler.plan.dense_fallback import all_dense
from tvm_sparse.compiler.plan.joined_layers import joined_pairs, with_joined
from tvm_sparse.compiler.plan.plan import Plan
from tvm_sparse.conv.reference import relative_difference
from tvm_sparse.frontend.prepare import PreparedModel, prepare
from tvm_sparse.runtime.compiled_model import CompiledModel
from tvm_sparse.scheduling.cpu.expansion import MOST_CHANNELS
from tvm_sparse.target.resolve import resolve_target


def on(threads: int) -> Target:
    return resolve_target({"kind": "llvm", "opt-level": 0, "num-cores": threads})


class Residual(nn.Module):
    """An inverted residual: 8 -> 32 -> 8 channels, with more layers behind the expansion where `tap` is given."""

    def __init__(self, wide: int = 32, narrow: int = 8, tap: nn.Module | None = None, stride: int = 1) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.expand = nn.Sequential(nn.Conv2d(narrow, wide, 1), nn.ReLU6())
        self.depthwise = nn.Sequential(nn.Conv2d(wide, wide, 3, stride, 1, groups=wide), nn.ReLU6())
        self.project, self.tap = nn.Conv2d(wide, narrow, 1), tap

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = self.expand(x)
        y = self.project(self.depthwise(wide))
        return y + x if self.tap is None else y + self.tap(wide)


def prepared(model: nn.Module, size: int = 14, images: int = 1) -> PreparedModel:
    return prepare(model.eval(), torch.zeros(images, 8, size, size))


def compiled(model: nn.Module, x: torch.Tensor, target: Target) -> tuple[PreparedModel, list[Decision], CompiledModel]:
    source = prepare(model.eval(), x)
    decisions = decide_together(source, target, None, predict=True)
    return source, decisions, build(source, decisions, target)


class Two(nn.Module):
    """An expansion without bias and ReLU before a depthwise layer with a stride and a residual behind it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.expand = nn.Conv2d(8, 16, 1, bias=False)
        self.depthwise, self.beside = nn.Conv2d(16, 16, 5, 2, 2, groups=16), nn.Conv2d(8, 16, 1, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.depthwise(self.expand(x)) + self.beside(x))


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("images", [1, 2])
def test_a_joined_model_agrees_with_torch(threads, images):
    model, x = nn.Sequential(Residual(), Two()).eval(), torch.randn(images, 8, 15, 14)
    source, decisions, ours = compiled(model, x, on(threads))
    assert [pair[1].name for pair in joined_pairs(source.layers, decisions)] == ["0.depthwise.0", "1.depthwise"]
    assert relative_difference(np.asarray(ours(x)), model(x).detach().numpy()) < 1e-5


def test_rows_say_what_is_joined():
    _, _, ours = compiled(Residual(), torch.randn(1, 8, 14, 14), on(1))
    expand, depthwise, project = ours.decisions
    assert expand["schedule"] == "dense_cpu" and expand["reason"].startswith(
        "predicted: dense in one kernel with depthwise.0 should be faster"
    )
    assert depthwise["schedule"] == "dense_cpu" and depthwise["reason"].endswith("; its kernel computes expand.0 too")
    assert "kernel" not in project["reason"]


def joined(model: nn.Module, threads: int = 1, size: int = 14, **changes: object) -> bool:
    """Whether the expansion, decided as `changes` say, and the depthwise layer are."""
    source, target = prepared(model, size), on(threads)
    decisions = decide_together(source, target, None, predict=False)
    decisions[0] = replace(decisions[0], **changes)
    return bool(joined_pairs(source.layers, with_joined(Plan.of(source, decisions, target)).decisions))


def test_others_are_left_alone():
    """What something else reads too, and what the kernel does not serve."""
    assert joined(Residual())
    assert not joined(Residual(tap=nn.Conv2d(32, 8, 1)))
    # No vectors divide the channels, and rows are too short.
    assert not joined(Residual(wide=36)) and not joined(Residual(), size=3)
    wide = nn.Sequential(nn.Conv2d(8, MOST_CHANNELS + 16, 3, padding=1), Residual(narrow=MOST_CHANNELS + 16))
    source = prepared(wide)
    assert not joined_pairs(source.layers, decide_together(source, on(1), None, predict=True))
    gpu = Target({"kind": "cuda", "arch": "sm_90"})
    decided = decide_together(prepared(Residual()), on(1), None, predict=False)
    decisions = [replace(each, choice=Default("dense_cuda"), joins=None) for each in decided]
    assert list(with_joined(Plan.of(prepared(Residual()), decisions, gpu)).decisions) == decisions


@pytest.mark.parametrize(
    ("threads", "size", "is_joined"), [(1, 56, False), (1, 112, True), (2, 56, False), (2, 64, True)]
)
def test_a_sparse_expansion_is_joined_where_it_writes_much(threads, size, is_joined):
    """More than a level-2 cache holds; of several threads less, as they read what others wrote."""
    sparse = {"choice": Predicted("folded_cpu", None)}
    assert joined(Residual(), threads, size, **sparse) == is_joined
    assert joined(Residual(), threads, size)


def test_it_is_decided_once_and_kept_apart_from_the_same_model_without():
    source, target = prepared(Residual()), on(1)
    alone = decide_together(source, target, None, predict=False)
    together = list(with_joined(Plan.of(source, alone, target)).decisions)
    assert list(with_joined(Plan.of(source, together, target)).decisions) == together
    assert all_dense(together, target, "asked for") == together
    cache = LibraryCache.of_user(target)
    assert cache is not None and cache.key(source, alone) != cache.key(source, together)


def test_a_model_that_shows_its_layers_has_a_kernel_for_each():
    source, target = prepared(Residual()), on(1)
    decisions = decide_together(source, target, None, predict=True)
    exposed = Exposed.of(source).prepared
    assert joined_pairs(source.layers, decisions) and not joined_pairs(exposed.layers, decisions)
    names = {each.name for each in source.layers}
    assert kernels_of(exposed.layers, decisions, target).keys() == names
    assert kernels_of(source.layers, decisions, target).keys() == names - {"expand.0"}


@pytest.fixture
def model(tmp_path, monkeypatch):
    """The path of a model with the layers ``wide``, of which a third is not zero, and ``deep``."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    nodes = [
        ("Conv", ["x", "wide.weight", "wide.bias"], ["t"], {}),
        ("Relu", ["t"], ["r"], {}),
        ("Conv", ["r", "deep.weight"], ["y"], {"pads": [1, 1, 1, 1], "group": 16}),
    ]
    shapes = {"wide.weight": (16, 4, 1, 1), "wide.bias": (16,), "deep.weight": (16, 1, 3, 3)}
    weights = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    path = tmp_path / "pair.onnx"
    onnx.save(zoo.onnx_model(nodes, weights, {"x": (1, 4, 12, 12)}, {"y": (1, 16, 12, 12)}), path)
    return str(path)


def test_commands_show_and_check_the_kernel_of_both(model, capsys):
    target = '{"kind":"llvm","opt-level":0,"num-cores":1}'
    for layer in ("wide", "deep"):
        assert main.main(["show", model, "--layer", layer, "--target", target, "--stage", "scheduled", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["schedule"].startswith("dense_cpu:expanded") and "expansion: T.Buffer" in found["text"]
        assert found["decisions"] is None
    assert main.main(["show", model, "--layer", "deep", "--target", target, "--schedule", "dense_cpu", "--json"]) == 0
    assert "expanded" not in json.loads(capsys.readouterr().out)["schedule"]
    assert main.main(["check", model, "--target", target, "--json"]) == 0
    (checked,) = json.loads(capsys.readouterr().out)["inputs"]
    assert {each["verdict"] for each in checked["layers"]} == {"ok"}
