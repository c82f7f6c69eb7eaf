"""Layers whose weights are all zero: on record as their bias, right wherever they stand, never tuned."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from tvm_sparse.autotune.session import tasks_of
from tvm_sparse.cli import main
from tvm_sparse.compiler import build_model
from tvm_sparse.compiler.layouts.blocked_layers import with_blocks
from tvm_sparse.compiler.pipeline import decide_together
from tvm_sparse.compiler.plan.joined_layers import joined_pairs
from tvm_sparse.compiler.plan.plan import Plan
from tvm_sparse.conv.dtypes import HALVES
from tvm_sparse.frontend.prepare import prepare
from tvm_sparse.target.cpu_info import CpuInfo
from tvm_sparse.target.resolve import resolve_target

REASON = "all weights are zero: the layer is its bias"
UNOPTIMISED = {"kind": "llvm", "opt-level": 0, "num-cores": 2}


class Net(nn.Module):
    """A bottleneck, a depthwise pair, a pool and a classifier, of which layers named `zero` have no weights."""

    def __init__(self, *zero: str):
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.first = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 32, 1)
        self.second, self.norm = nn.Conv2d(32, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32)
        self.expansion, self.depthwise = nn.Conv2d(32, 64, 1), nn.Conv2d(64, 64, 3, padding=1, groups=64)
        self.head = nn.Linear(64, 10)
        for name in zero:
            getattr(self, name).weight.data.zero_()
        self.norm.bias.data.normal_()
        self.eval()

    def forward(self, x):
        x = torch.relu(self.stem(x))
        x = torch.relu(self.norm(self.second(torch.relu(self.first(x)))) + x)
        # As MobileNets have it: torch need not decompose it.
        relu6 = nn.ReLU6()
        x = relu6(self.depthwise(relu6(self.expansion(x))))
        return self.head(nn.functional.max_pool2d(x, 2).mean((2, 3)))


LAYERS = ("stem", "first", "second", "expansion", "depthwise", "head")
X = torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def _avx512(monkeypatch):
    """Vectors of 16, whatever the processor, so that tensors lie in blocks."""
    monkeypatch.setattr(CpuInfo, "of", classmethod(lambda cls, _target: cls(16, "", True)))


def check(net, rows, compiled, zero, x=X, tolerance=1e-4):
    chosen = {row["layer"]: row for row in rows}
    # Those that only they read have become zeros too.
    assert {name for name, row in chosen.items() if row["schedule"] == "bias_cpu"} >= set(zero)
    assert all(chosen[name]["reason"].startswith(REASON) for name in zero)
    with torch.no_grad():
        expected = net(x.float())
    torch.testing.assert_close(compiled(x).float(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("zero", [("stem", "depthwise"), ("first", "expansion"), ("second", "head"), LAYERS])
def test_is_its_bias(zero):
    net = Net(*zero)
    compiled = build_model.compile(net, X, target=UNOPTIMISED)
    check(net, compiled.report(), compiled, zero)


@pytest.mark.parametrize("dtype", HALVES)
def test_in_half_precision(dtype):
    net, zero = Net("second", "head"), ("second", "head")
    compiled = build_model.compile(net, X, target=UNOPTIMISED, dtype=dtype)
    check(net, compiled.report(), compiled, zero, X.to(getattr(torch, dtype)), tolerance=3e-2)


def test_keeps_tensors_in_blocks():
    """A residual is added in blocks, and the layer behind reads them."""
    target = resolve_target(UNOPTIMISED)
    prepared = prepare(Net("second"), X).as_given
    decisions = decide_together(prepared, target, None)
    found = {each.layer: each.layouts for each in with_blocks(Plan.of(prepared, decisions, target)).decisions}
    assert found["second"].x and found["second"].residual and found["second"].y
    assert found["expansion"].x


def test_an_expansion_of_zeros_is_not_joined_to_what_reads_it():
    """It writes as fast as anything could be computed again."""
    target, prepared = resolve_target(UNOPTIMISED), prepare(Net("expansion"), torch.zeros(1, 3, 112, 112)).as_given
    decisions = decide_together(prepared, target, None, predict=True)
    assert joined_pairs(prepared.layers, decisions) == []
    assert joined_pairs(prepared.layers, [replace(each, joins=None) for each in decisions]) == []


def test_with_strict_nonfinite_it_multiplies():
    net = Net("first", "second")
    compiled = build_model.compile(net, X, target=UNOPTIMISED, strict_nonfinite=True)
    assert {row["schedule"] for row in compiled.report()} == {"dense_cpu"}
    x = X.clone()
    x[0, 0, 3, 3] = torch.inf
    with torch.no_grad():
        expected = net(x)
    assert expected.isnan().any()
    np.testing.assert_allclose(compiled(x).numpy(), expected.numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("target", [UNOPTIMISED, {"kind": "cuda", "arch": "sm_90"}], ids=["cpu", "cuda"])
def test_is_decided_without_being_tuned(target):
    prepared = prepare(Net("first", "head"), X).as_given
    decisions = decide_together(prepared, resolve_target(target), None)
    bias = [each for each in decisions if each.schedule.startswith("bias")]
    assert [each.layer for each in bias] == ["first", "head"]
    assert not any(each.transferred for each in bias)
    tuned = {name for task in tasks_of(prepared.layers) for name in task.names}
    assert tuned == {each.layer for each in decisions} - {"first", "head"}


def test_is_compiled_for_a_gpu():
    """Where there is none, code is made all the same."""
    compiled = build_model.compile(Net(*LAYERS), X, target={"kind": "cuda", "arch": "sm_90"}, predict=False)
    assert {row["schedule"] for row in compiled.report()} == {"bias_cuda"}


def test_is_said_on_the_command_line(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = nn.Sequential(nn.Conv2d(4, 8, 3), nn.ReLU()).eval()
    nn.init.zeros_(module[0].weight)
    path = tmp_path / "m.pt2"
    torch.export.save(torch.export.export(module, (torch.zeros(1, 4, 9, 9),)), path)
    target = ["--target", '{"kind":"llvm","num-cores":1}']
    assert main.main(["inspect", str(path), *target]) == 0
    assert "bias alone" in capsys.readouterr().out
    assert main.main(["tune", str(path), *target, "--output", str(tmp_path / "log.jsonl"), "--trials", "1"]) == 0
    assert not (tmp_path / "log.jsonl").exists() or not (tmp_path / "log.jsonl").read_text()
    assert main.main(["check", str(path), *target]) == 0
