"""Tensors between dense layers that lie in blocks of channels: found, decided, replaced, right."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import onnx
import pytest
import torch
import zoo
from parameters import by_turns
from torch import nn
from tvm.target import Target

from tvm_sparse.cli import main
from tvm_sparse.compiler import build_plan
from tvm_sparse.compiler.build_model import build
from tvm_sparse.compiler.building import make_kernels, verify
from tvm_sparse.compiler.checking.layer_check import Exposed
from tvm_sparse.compiler.layouts.blocked_layers import with_blocks
from tvm_sparse.compiler.pipeline import decide_together
from tvm_sparse.compiler.plan.choice import Default, Predicted
from tvm_sparse.compiler.plan.decision import Decision
from tvm_sparse.compiler.plan.plan import Plan
from tvm_sparse.conv.nchwc import NCHW, Layouts
from tvm_sparse.conv.reference import relative_difference
from tvm_sparse.frontend.prepare import PreparedModel, prepare
from tvm_sparse.runtime.compiled_model import CompiledModel
from tvm_sparse.target.cpu_info import CpuInfo
from tvm_sparse.target.resolve import resolve_target


@pytest.fixture(autouse=True)
def _avx512(monkeypatch):
    """Vectors of 16, which any processor computes with those that it has."""
    monkeypatch.setattr(CpuInfo, "of", classmethod(lambda cls, _target: cls(16, "", True)))


def on(threads: int = 1) -> Target:
    return resolve_target({"kind": "llvm", "opt-level": 0, "num-cores": threads})


def conv(c: int, k: int, taps: int = 1, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(c, k, taps, stride, taps // 2)


class Bottleneck(nn.Module):
    """He et al. 2016, with a convolution beside it where the shape changes."""

    def __init__(self, c: int, middle: int, k: int, stride: int = 1) -> None:
        super().__init__()
        self.first, self.second, self.third = conv(c, middle), conv(middle, middle, 3, stride), conv(middle, k)
        self.shortcut = conv(c, k, 1, stride) if (c, stride) != (k, 1) else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.second(torch.relu(self.first(x))))
        return torch.relu(self.third(y) + self.shortcut(x))


class Net(nn.Module):
    """Two blocks behind a first layer with three channels and a pool, before a mean over pixels."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.pool = conv(3, 32, 3), nn.MaxPool2d(3, 1, 1)
        self.one, self.two = Bottleneck(32, 32, 64, 2), Bottleneck(64, 32, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(self.one(self.pool(torch.relu(self.stem(x))))).mean((2, 3))


def decided(model: nn.Module, x: torch.Tensor, target: Target) -> tuple[PreparedModel, list[Decision]]:
    source = prepare(model.eval(), x)
    return source, decide_together(source, target, None, predict=True)


def compiled(model: nn.Module, x: torch.Tensor, target: Target) -> CompiledModel:
    source, decisions = decided(model, x, target)
    return build(source, decisions, target)


def layouts_of(model: nn.Module, size: int = 16, **changes: Decision) -> dict[str, str]:
    """Of each layer which tensors lie in blocks: some of x, residual (r) and y; `changes` are decisions by layer."""
    source = prepare(model.eval(), torch.zeros(1, next(model.parameters()).shape[1], size, size))
    decisions = [
        replace(each, **changes.get(each.layer, {})) for each in decide_together(source, on(), None, predict=False)
    ]
    found = with_blocks(Plan.of(source, decisions, on())).decisions
    names = {each.layer: each.layouts for each in found}
    return {name: "x" * each.x + "r" * each.residual + "y" * each.y for name, each in names.items()}


@pytest.mark.parametrize(("threads", "images"), by_turns([1, 3], [1, 2], 2))
def test_a_model_agrees_with_torch(threads, images):
    model, x = Net().eval(), torch.randn(images, 3, 32, 32)
    ours = compiled(model, x, on(threads))
    assert sum("blocks of 16 channels" in row["reason"] for row in ours.decisions) == 8
    assert relative_difference(np.asarray(ours(x)), model(x).detach().numpy()) < 1e-5


def test_as_many_tensors_as_possible_lie_in_blocks():
    """All but the first layer's input, which has three channels; a mean of all pixels reads blocks too."""
    assert layouts_of(Net()) == {
        "stem": "y",
        "one.first": "xy",
        "one.second": "xy",
        "one.third": "xry",
        "one.shortcut": "xy",
        "two.first": "xy",
        "two.second": "xy",
        "two.third": "xry",
    }


def test_a_layer_of_another_kernel_keeps_its_neighbours_as_they_are():
    sparse = {"choice": Default("folded_cpu")}
    found = layouts_of(Net(), **{"two.second": sparse})
    assert found["two.first"] == "x" and found["two.second"] == "" and found["two.third"] == "ry"
    # A residual that does not lie in blocks is added to no output that does.
    found = layouts_of(Net(), **{"one.shortcut": sparse})
    assert found["one.third"] == "x" and found["two.first"] == "y" and found["two.third"] == "x"


def test_winograd_reads_and_writes_blocks_where_its_neighbours_do():
    winograd = {"choice": Default("winograd_cpu")}
    found = layouts_of(Net(), **{"two.second": winograd})
    assert (found["two.first"], found["two.second"], found["two.third"]) == ("xy", "xy", "xry")
    found = layouts_of(Net(), **{"two.second": winograd, "two.first": {"choice": Default("folded_cpu")}})
    assert (found["two.first"], found["two.second"], found["two.third"]) == ("", "y", "x")
    chain = nn.Sequential(conv(32, 32), conv(32, 32, 3), nn.Sigmoid())
    assert list(layouts_of(chain, **{"1": winograd}).values()) == list(layouts_of(chain).values()) == ["y", "x"]


class Pooled(nn.Module):
    """Max pools of all kinds, of which the last is the result."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.third = conv(32, 32), conv(32, 64, 3), conv(64, 32)
        self.halved, self.padded = nn.MaxPool2d(2), nn.MaxPool2d(3, 2, 1, ceil_mode=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.halved(self.third(self.padded(self.second(self.halved(self.first(x))))))


@pytest.mark.parametrize("threads", [pytest.param(1, marks=pytest.mark.exhaustive), 3])
def test_max_pools_read_and_write_blocks(threads):
    model, x = Pooled().eval(), torch.randn(2, 32, 60, 60)
    assert layouts_of(model, 60) == {"first": "y", "second": "xy", "third": "x"}
    assert relative_difference(np.asarray(compiled(model, x, on(threads))(x)), model(x).detach().numpy()) < 1e-5


class Inception(nn.Module):
    """Branches side by side, of which one is a pool."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.before, self.one, self.two = conv(16, 32), conv(32, 48), nn.Sequential(conv(32, 16), conv(16, 32, 3))
        self.pool, self.after, self.beside = nn.MaxPool2d(3, 1, 1), conv(112, 32), nn.Conv2d(80, 32, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.before(x)
        y = self.after(torch.cat([self.one(x), self.two(x), self.pool(x)], 1))
        # Of another one, what is joined is read by something else too.
        z = torch.cat([self.one(x), self.two(x)], 1)
        return y + self.beside(z) * z.mean()


@pytest.mark.parametrize("threads", [pytest.param(1, marks=pytest.mark.exhaustive), 3])
def test_concatenated_tensors_lie_in_blocks(threads):
    """Where all of them can, and nothing else reads them."""
    model, x = Inception().eval(), torch.randn(2, 16, 12, 14)
    found = list(layouts_of(model, 12).values())
    assert found[:5] == ["y", "xy", "xy", "xy", "xr"] and found[5:] == ["x", "xy", "x", "y"]
    assert relative_difference(np.asarray(compiled(model, x, on(threads))(x)), model(x).detach().numpy()) < 1e-5


class Inverted(nn.Module):
    """Expansions of few and many channels, each before a depthwise layer and a projection."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential()
        for number, narrow in enumerate((16, 32)):
            wide = nn.Conv2d(64, 64, 3, 1, 1, groups=64)
            layers = (conv(narrow, 64), nn.ReLU6(), wide, nn.ReLU6(), conv(64, 32))
            for kind, layer in zip(("expand", "", "deep", "", "project"), layers, strict=True):
                self.layers.add_module(f"{kind or 'relu' + str(len(self.layers))}{number}", layer)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def test_an_expansion_keeps_its_kernel_where_it_lies_in_blocks():
    """And the depthwise layer too."""
    model, x = Inverted().eval(), torch.randn(1, 16, 28, 28)
    source, decisions = decided(model, x, on())
    assert not any(each.joins for each in decisions)
    found = {each.layer: each.layouts for each in decisions}
    assert found["layers.deep0"] == found["layers.deep1"] == Layouts(16, True, False, True)
    assert relative_difference(np.asarray(build(source, decisions, on())(x)), model(x).detach().numpy()) < 1e-5


class Twice(nn.Module):
    """A result that a layer and something else read, which lies as it is read there."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = conv(32, 32), conv(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        return self.second(y) * y.flip(2)


class Mobile(nn.Module):
    """Hard swishes, means of pixels, numbers by which channels are multiplied, and channels that fill no blocks."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.wide, self.narrow = conv(3, 16, 3), conv(16, channels), conv(channels, 24)
        self.deep = nn.Conv2d(channels, channels, 3, 1, 1, groups=channels)
        self.squeeze, self.excite = conv(channels, 8), conv(8, channels)
        self.norm, self.last = nn.BatchNorm2d(24), conv(24, 40)
        self.norm.running_mean, self.norm.running_var = torch.randn(24), torch.rand(24) + 0.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.deep(nn.functional.hardswish(self.wide(nn.functional.silu(self.stem(x)))))
        x = x * torch.sigmoid(self.excite(torch.relu(self.squeeze(x.mean((2, 3), keepdim=True)))))
        x = nn.functional.avg_pool2d(self.narrow(x), 3, 1, 1, count_include_pad=False)
        return torch.relu(self.last(self.norm(torch.relu(x)) - 0.5)).mean((2, 3))


@pytest.mark.parametrize(
    ("channels", "images", "threads"), [pytest.param(64, 1, 1, marks=pytest.mark.exhaustive), (72, 2, 3)]
)
def test_what_lies_between_layers_keeps_blocks(channels, images, threads):
    """Also of channels that leave the last block half empty."""
    model, x = Mobile(channels).eval(), torch.randn(images, 3, 16, 16)
    found = layouts_of(model)
    assert found == {"stem": "y", "wide": "xy", "deep": "xy", "squeeze": "", "excite": "", "narrow": "xy", "last": "xy"}
    ours = compiled(model, x, on(threads))
    assert relative_difference(np.asarray(ours(x)), model(x).detach().numpy()) < 1e-5


class Added(nn.Module):
    """A result that one layer reads as its input and as its residual."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.third = conv(32, 32), conv(32, 32), conv(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        return self.third(self.second(y) + y)


def test_what_others_read_is_left_alone():
    """What keeps no blocks, is returned, or has channels that leave most of a block empty."""
    assert set(layouts_of(Twice()).values()) == {""}
    assert set(layouts_of(nn.Sequential(conv(32, 6), conv(6, 32))).values()) == {""}
    # An output of channels that fill no blocks does not lie so alone: what reads it cannot.
    assert set(layouts_of(nn.Sequential(conv(32, 32), conv(32, 24), nn.Softmax(1))).values()) == {""}
    assert list(layouts_of(nn.Sequential(conv(32, 32), nn.AvgPool2d(2), conv(32, 32))).values()) == ["y", "x"]
    assert layouts_of(Added()) == {"first": "y", "second": "xry", "third": "x"}
    model, x = Added().eval(), torch.randn(1, 32, 12, 12)
    assert relative_difference(np.asarray(compiled(model, x, on())(x)), model(x).detach().numpy()) < 1e-5


def test_only_with_vectors_that_were_measured(monkeypatch):
    monkeypatch.setattr(CpuInfo, "of", classmethod(lambda cls, _target: cls(4, "v")))
    assert set(layouts_of(Net()).values()) == {""}
    source, decisions = decided(Net(), torch.zeros(1, 3, 16, 16), on())
    gpu = Target({"kind": "cuda", "arch": "sm_90"})
    changed = [replace(each, layouts=Layouts(16, True, True, True)) for each in decisions]
    assert {each.layouts for each in with_blocks(Plan.of(source, changed, gpu)).decisions} == {NCHW}


@pytest.mark.parametrize("threads", [pytest.param(1, marks=pytest.mark.exhaustive), 3])
def test_blocks_are_as_long_as_vectors(monkeypatch, threads):
    """Of eight channels with AVX2; what computes on blocks does so on these too."""
    monkeypatch.setattr(CpuInfo, "of", classmethod(lambda cls, _target: cls(8, "ymm")))
    for model, x in ((Net(), torch.randn(2, 3, 16, 16)), (Inception(), torch.randn(2, 16, 12, 14))):
        source, decisions = decided(model.eval(), x, on(threads))
        assert {each.layouts.channels for each in decisions if each.layouts.has_blocks} == {8}
        found = np.asarray(build(source, decisions, on(threads))(x))
        assert relative_difference(found, model(x).detach().numpy()) < 1e-5


def test_a_model_that_shows_its_layers_writes_no_blocks():
    source, decisions = decided(Net(), torch.zeros(1, 3, 16, 16), on())
    exposed = Exposed.of(source).prepared
    found = with_blocks(Plan.of(exposed, decisions, on())).decisions
    assert any(each.layouts.y for each in decisions) and not any(each.layouts.has_blocks for each in found)


def test_kernels_are_verified_as_they_lie(monkeypatch):
    """One that is wrong gives way, and its neighbours still agree with what follows it."""
    source, decisions = decided(Net(), torch.zeros(1, 3, 16, 16), on())
    other = Predicted("winograd_cpu", {})
    changed = [replace(each, choice=other) if each.layer == "two.second" else each for each in decisions]
    x = torch.randn(1, 3, 16, 16)
    expected = Net().eval()(x).detach().numpy()
    ours = build(source, changed, on())
    assert ours.decisions == [each.to_json() for each in with_blocks(Plan.of(source, changed, on())).decisions]
    assert relative_difference(np.asarray(ours(x)), expected) < 1e-5

    def doubled(layer, decision, target, of=make_kernels.blocked_kernel):
        space, kernel = of(layer, decision, target)
        is_wrong = layer.name == "two.second" and decision.transferred
        constants = tuple((1.5 if is_wrong else 1) * each for each in kernel.constants)
        return space, replace(kernel, constants=tuple(each.astype(np.float32) for each in constants))

    monkeypatch.setattr(make_kernels, "blocked_kernel", doubled)
    monkeypatch.setattr(build_plan.LibraryCache, "of_user", classmethod(lambda *_: None))
    monkeypatch.setattr(verify, "VERIFICATION_SEED", 7)
    ours = build(source, changed, on())
    (row,) = (each for each in ours.decisions if each["layer"] == "two.second")
    assert row["schedule"] == "dense_cpu" and "the transferred kernel is wrong by" in row["reason"]
    assert relative_difference(np.asarray(ours(x)), expected) < 1e-5


def test_commands_show_the_kernel_of_the_model(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    nodes = [("Conv", ["x", "a"], ["t"], {}), ("Relu", ["t"], ["r"], {}), ("Conv", ["r", "b"], ["y"], {})]
    weights = {name: rng.standard_normal((32, 32, 1, 1)).astype(np.float32) for name in "ab"}
    path, target = str(tmp_path / "two.onnx"), '{"kind":"llvm","num-cores":1}'
    onnx.save(zoo.onnx_model(nodes, weights, {"x": (1, 32, 12, 12)}, {"y": (1, 32, 12, 12)}), path)
    for layer, tensors in (("Conv_0", "output"), ("Conv_2", "input")):
        assert main.main(["show", path, "--layer", layer, "--target", target, "--stage", "scheduled", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["schedule"] == "dense_cpu:nchwc" and found["decisions"] is None
        assert found["reason"].endswith(f"; blocks of 16 channels: {tensors}")
        assert "T.Buffer((1, 2, 12, 12, 16)" in found["text"]
    asked = ["show", path, "--layer", "Conv_0", "--target", target, "--schedule", "dense_cpu", "--json"]
    assert main.main(asked) == 0 and "nchwc" not in json.loads(capsys.readouterr().out)["schedule"]
    assert main.main(["check", path, "--target", target, "--json"]) == 0
    assert main.main(["inspect", path, "--target", target]) == 0
