"""Torch programs that are imported as they were exported, and those that torch must decompose first."""

from __future__ import annotations

import pytest
import torch
import tvm_ffi
import zoo
from torch import nn

from tvm_sparse.conv.reference import relative_difference
from tvm_sparse.frontend.passes.folding.fold_constants import fold_constants
from tvm_sparse.frontend.torch import import_program
from tvm_sparse.frontend.torch.import_program import export_module
from tvm_sparse.frontend.torch.rewriting.direct import is_direct


class Block(nn.Module):
    """What ResNets, GoogLeNets and MobileNets are made of, in place where they are, with parameters of all kinds."""

    def __init__(self, classes: int = 0):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.norm = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8, eps=0.01, momentum=0.2)
        self.plain, self.one = nn.BatchNorm2d(8, affine=False), nn.Conv2d(8, 8, 1, groups=2, bias=False)
        self.wide = nn.Conv2d(8, 8, (3, 2), stride=(1, 1), padding=(2, 1), dilation=2)
        self.relu, self.relu6 = nn.ReLU(inplace=True), nn.ReLU6(inplace=True)
        self.pool, self.mean = nn.MaxPool2d(3, 2, 1, ceil_mode=True), nn.AvgPool2d(3, 1, 1, count_include_pad=False)
        self.few, self.end = nn.AdaptiveAvgPool2d((3, 2)), nn.AdaptiveAvgPool2d(1)
        self.drop, self.linear = nn.Dropout(0.5, inplace=True), nn.Linear(19, classes) if classes else nn.Identity()
        for norm in (self.norm, self.plain):
            norm.running_mean.normal_(), norm.running_var.uniform_(0.5, 2)

    def forward(self, x):
        y = self.relu(self.norm(self.conv(x)))
        z = self.relu6(self.plain(self.one(y)))
        z += y
        z = self.relu(self.wide(z) + z.mean([2, 3], keepdim=True))
        maps = torch.cat([self.pool(z), self.mean(self.pool(y)) * torch.sigmoid(self.pool(y))], 1)
        few = self.few(maps).permute(0, 2, 1, 3).reshape(-1, 8, 3, 4).mean((2, 3))
        some = few.view(x.shape[0], -1)[:, 1:-1:2]
        return self.linear(self.drop(torch.cat([torch.flatten(self.end(maps), 1), some], 1)))


class ReadAgain(nn.Module):
    """An operator in place, whose input others read, themselves or through a view."""

    def __init__(self, way: str):
        super().__init__()
        self.way, self.conv = way, nn.Conv2d(8, 8, 1)

    def forward(self, x):
        y = self.conv(x)
        if self.way == "input":
            return x.relu_() + self.conv(x)
        if self.way == "view":
            y.view(1, 8, -1).relu_()
            return y
        if self.way == "output":
            torch.relu_(y)
            return y
        z = torch.relu_(y)
        return y + z


class ThreeDimensions(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 4)

    def forward(self, x):
        return self.linear(x[0])


def imported(program, monkeypatch, directly: bool):
    """The module that a program becomes, torch decomposing it unless `directly`."""
    with monkeypatch.context() as patch:
        patch.setattr(import_program, "is_direct", lambda _: directly)
        return import_program.import_program("model", program)


def test_what_is_imported_is_the_same_as_decomposed(monkeypatch):
    program = export_module(Block().eval(), torch.zeros(2, 8, 9, 9))
    assert is_direct(program)
    found, decomposed = (imported(program, monkeypatch, each) for each in (True, False))
    assert tvm_ffi.structural_equal(fold_constants(found), fold_constants(decomposed))


def test_a_classifier_computes_the_same():
    """TVM adds the bias of a linear layer from the other side."""
    model, x = Block(10).eval(), torch.randn(2, 8, 9, 9)
    program = export_module(model, x)
    assert is_direct(program)
    (y,) = zoo.run_relax(import_program.import_program("model", program), x.numpy())
    assert relative_difference(y, model(x.clone()).detach().numpy()) < 1e-6


@pytest.mark.parametrize("way", ["input", "view", "output", "later"])
def test_what_others_read_changes_for_them_too(way):
    """As in torch; of an input and of a view only where torch decomposes."""
    torch.manual_seed(0)
    model, x = ReadAgain(way).eval(), torch.randn(1, 8, 5, 5)
    program = export_module(model, x.clone())
    assert is_direct(program) == (way in ("output", "later"))
    if way != "input":
        (y,) = zoo.run_relax(import_program.import_program("model", program), x.numpy())
        assert relative_difference(y, model(x.clone()).detach().numpy()) < 1e-6


def test_a_graph_that_reads_what_was_changed_is_decomposed():
    """Torch's tracer writes none like it."""
    program = export_module(ReadAgain("later").eval(), torch.zeros(1, 8, 5, 5))
    conv, _, add = (node for node in program.graph.nodes if node.op == "call_function")
    add.args = (conv, add.args[1])
    assert not is_direct(program)


@pytest.mark.parametrize(
    ("model", "shape"),
    [(nn.Sequential(nn.Conv2d(8, 8, 1), nn.Hardswish()), (1, 8, 5, 5)), (ThreeDimensions(), (1, 2, 3, 6))],
)
def test_what_is_unknown_is_decomposed(model, shape):
    assert not is_direct(export_module(model.eval(), torch.zeros(shape)))


def test_half_precision_is_decomposed():
    assert not is_direct(export_module(nn.Conv2d(8, 8, 1).half().eval(), torch.zeros(1, 8, 5, 5).half()))


def test_shapes_that_are_not_fixed_are_decomposed():
    dynamic = {"input": {0: torch.export.Dim("n", min=2, max=8)}}
    program = torch.export.export(nn.Conv2d(8, 8, 1).eval(), (torch.zeros(2, 8, 5, 5),), dynamic_shapes=dynamic)
    assert not is_direct(program)
