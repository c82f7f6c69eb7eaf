"""Tensors that stay in NHWC between convolutions of cuDNN, on a library that computes on the host."""

import functools
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
import zoo
from fake_cudnn import HOST
from torch import nn

from tvm_sparse.compiler import build_model
from tvm_sparse.compiler.plan.choice import Predicted
from tvm_sparse.compiler.plan.kernel_selection import decide
from tvm_sparse.frontend.prepare import prepare

COPY = "TransformTensor"
NCHW = {"layout": "nchw", "algorithm": "implicit_precomp_gemm", "epilogue": "fused"}
NHWC = {**NCHW, "layout": "nhwc"}
LAYOUTS = {"c": NCHW, "h": NHWC, "H": {**NHWC, "epilogue": "apart"}, "f": {**NHWC, "layout": "nhwc_staged"}}


@functools.cache
def prepared_model(name, dtype=None):
    """A model of the zoo and the decisions for its convolutions."""
    module, shapes = zoo.TORCH[name]
    prepared = prepare(module, tuple(torch.zeros(shape) for shape in shapes), None, None, dtype)
    return prepared, decide(prepared.layers, HOST, None)


def compiled(name, layouts, dtype=None):
    """A model of the zoo whose convolutions have the layouts that the letters stand for."""
    prepared, decided = prepared_model(name, dtype)
    schedule = "dense_cudnn:tf32" if dtype is None else "dense_cudnn:fp16"
    decisions = [
        replace(each, choice=Predicted(schedule, LAYOUTS[letter]))
        for each, letter in zip(decided, layouts, strict=True)
    ]
    model = build_model.build(prepared, decisions, HOST)
    assert [row["schedule"] for row in model.report()] == [schedule] * len(layouts)
    return model


def run(model, name, fake):
    """Outputs and torch's, and how many tensors were copied."""
    _, shapes = zoo.TORCH[name]
    arrays = zoo.inputs_of(shapes)
    fake.reset()
    found = model(*arrays)
    copies = fake.names().count(COPY)
    return [np.asarray(each) for each in (found if isinstance(found, (list, tuple)) else [found])], copies


# Of the input and of what the model returns or other operators read, each once.
@pytest.mark.parametrize(
    ("name", "layouts", "copies"),
    [
        # x for the first convolution and the residual, and the result.
        ("residual", "hh", 2),
        ("residual", "cc", 0),
        # x, the first result for the second convolution; x as the residual is not read in NHWC.
        ("residual", "hc", 2),
        # The first result, x as the residual, and the result.
        ("residual", "ch", 3),
        ("residual_two_convs", "hh", 2),
        ("two_consumers", "hhh", 3),
        # A ReLU and a sum between them compute in NHWC too.
        ("used_twice", "hh", 2),
        ("shared", "hh", 2),
    ],
)
def test_each_tensor_is_converted_once_at_most(on_host, name, layouts, copies):
    assert run(compiled(name, layouts), name, on_host)[1] == copies


@pytest.mark.parametrize(
    "name",
    ["same_padding_even", "grouped", "relu6", "residual_swapped", "residual_no_relu", "residual_two_convs"]
    + ["used_twice", "two_consumers", "doubled", "shared", "in_place", "classifier", "between"],
)
def test_any_layouts_give_the_same(on_host, name):
    module, shapes = zoo.TORCH[name]
    count = sum(isinstance(each, nn.Conv2d) for each in module.modules()) + (name == "shared")
    choices = random.Random(name)
    expected = zoo.run_torch(module, *zoo.inputs_of(shapes))
    for layouts in {"h" * count, "H" * count, *("".join(choices.choices("chH", k=count)) for _ in range(2))}:
        found, _ = run(compiled(name, layouts), name, on_host)
        for each, other in zip(found, expected, strict=True):
            # As far as rounding the inputs to TF32 goes.
            np.testing.assert_allclose(each, other, rtol=1e-2, atol=1e-2 * np.abs(other).max(), err_msg=layouts)


@pytest.mark.parametrize(("layouts", "copies"), [("hhhh", 2), ("cccc", 0), ("hchh", 4), ("chhh", 2), ("hhhc", 2)])
def test_what_computes_in_either_layout_goes_along(on_host, layouts, copies):
    """x and what the mean reads are converted; and where a layer between is NCHW, what it reads and what it makes."""
    assert run(compiled("between", layouts), "between", on_host)[1] == copies


# Copies of the residual, which is x, and of the result.
@pytest.mark.parametrize(("layouts", "copies"), [("ff", 2), ("hf", 2), ("fh", 2), ("fc", 1), ("cf", 2)])
def test_what_is_written_anew_is_read_in_either_layout(on_host, layouts, copies):
    """A network in float16, whose four channels tensor cores read only in a group of eight."""
    module, shapes = zoo.TORCH["residual"]
    arrays = zoo.inputs_of(shapes)
    model = compiled("residual", layouts, "float16")
    on_host.reset()
    found = np.asarray(model(*(each.astype(np.float16) for each in arrays)), np.float32)
    assert on_host.names().count(COPY) == copies
    (expected,) = zoo.run_torch(module, *arrays)
    np.testing.assert_allclose(found, expected, rtol=1e-2, atol=1e-2 * np.abs(expected).max())


def test_a_layer_that_cudnn_refuses_in_nhwc_stays_cudnn_s(on_host):
    """Where the library cannot change layouts, say, it computes in NCHW."""
    on_host.fail("cudnnTransformTensor", 3000)
    module, shapes = zoo.TORCH["residual"]
    prepared, decided = prepared_model("residual")
    decisions = [replace(each, choice=Predicted("dense_cudnn:tf32", NHWC)) for each in decided]
    model = build_model.build(prepared, decisions, HOST)
    for row in model.report():
        assert row["schedule"] == "dense_cudnn:tf32"
        assert row["reason"].startswith("dense, because convolution ") and "nhwc" in row["reason"]
    (found,), copies = run(model, "residual", on_host)
    assert copies == 0
    np.testing.assert_allclose(found, zoo.run_torch(module, *zoo.inputs_of(shapes))[0], rtol=1e-2, atol=1e-1)


class Block(nn.Module):
    """What begins a stage of ResNet, which has one layer more if it is `wide`, and of which a caller may read more."""

    def __init__(self, stride=1, filters=32, wide=False, returns=False):
        super().__init__()
        self.middle, self.last = nn.Conv2d(8, 8, 3, stride, 1), nn.Conv2d(8, filters, 1)
        self.added, self.wide, self.returns = nn.Conv2d(8, filters, 1, stride), wide, returns

    def forward(self, x):
        added = self.added(x)
        added = added.relu() if self.wide else added
        found = (self.last(self.middle(x).relu()) + added).relu()
        return (found, added) if self.returns else found


BLOCKS = {"stride": {"stride": 2}, "few": {"filters": 16}, "relu": {"wide": True}, "returned": {"returns": True}}


@pytest.mark.parametrize(
    ("changes", "calls"), zip([{}, *BLOCKS.values()], (2, 2, 3, 3, 3), strict=True), ids=["", *BLOCKS]
)
def test_a_residual_is_computed_with_what_adds_it(on_host, changes, calls):
    """As channels of one convolution, if nothing else needs it, and if that moves less."""
    module, x = Block(**changes).eval(), torch.randn(2, 8, 9, 9)
    prepared = prepare(module, (x,), None, None, "float16")
    decisions = [
        replace(each, choice=Predicted("dense_cudnn:fp16", NHWC)) for each in decide(prepared.layers, HOST, None)
    ]
    model = build_model.build(prepared, decisions, HOST)
    on_host.reset()
    found, expected = model(x.half().numpy()), module(x)
    assert on_host.names().count("ConvolutionBiasActivationForward") == calls
    pairs = zip(found, expected, strict=True) if changes.get("returns") else [(found, expected)]
    for each, other in pairs:
        np.testing.assert_allclose(np.asarray(each), other.detach().numpy(), rtol=1e-2, atol=2e-2)
