"""A model that has lost whole filters: what is compiled of it, what its dense twin is, and what is said of both."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import zoo
from torch import nn
from torch.nn.utils import prune

from tvm_sparse.compiler.build_model import Compilation
from tvm_sparse.compiler.checking.layer_check import Exposed
from tvm_sparse.compiler.pipeline import Options
from tvm_sparse.compiler.plan.expected_gain import times_of, verdict_of
from tvm_sparse.frontend.passes.relax_graph import fixed_shape
from tvm_sparse.frontend.prepare import prepare
from tvm_sparse.runtime.verdict import Verdict
from tvm_sparse.target.resolve import resolve_target
from tvm_sparse.verdict.worth import Zeros, density_of, is_unpruned

TARGET = resolve_target(zoo.UNOPTIMISED)
X = (1, 3, 8, 8)


@pytest.fixture(scope="module")
def model():
    """Two blocks as in ResNet-18, half of the filters of each first convolution pruned."""
    blocks = [
        zoo.Residual(zoo.conv(32, 32), nn.BatchNorm2d(32), nn.ReLU(), zoo.conv(32, 32), nn.BatchNorm2d(32))
        for _ in range(2)
    ]
    for block in blocks:
        prune.ln_structured(block[0], "weight", 0.5, n=2, dim=0)
        prune.remove(block[0], "weight")
        with torch.no_grad():
            for of in (block[0], block[1]):
                of.bias.copy_(torch.randn(32).clamp(max=0))
            block[1].running_mean.copy_(block[0].bias)
    return nn.Sequential(zoo.conv(3, 32), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 4)).eval()


@pytest.fixture(scope="module")
def prepared(model):
    return prepare(model, torch.zeros(X))


def test_shapes_and_names(prepared):
    names = {layer.name: (layer.spec.c, layer.spec.k) for layer in prepared.layers}
    assert names == {"0": (3, 32), "1.0": (32, 16), "1.3": (16, 32), "2.0": (32, 16), "2.3": (16, 32)}
    assert [layer.name for layer in prepared.whole.layers] == list(names)
    assert {layer.spec.k for layer in prepared.as_given.layers} == {32}
    assert prepared.removed == (32, 32)


def test_it_computes_the_same_and_says_what_is_gone(model, prepared):
    compilation = Compilation(prepared, TARGET, None)
    x = zoo.inputs_of([X])[0]
    (expected,) = zoo.run_torch(model, x)
    built = compilation.build()
    for each in (built, compilation.build_dense("this is the baseline")):
        np.testing.assert_allclose(each(x), expected, rtol=1e-4, atol=1e-4)
    assert "32 filters and 32 input channels taken out" in built.report_text()


def test_what_is_known_of_it_is_of_the_model_as_given(prepared):
    plan = Compilation(prepared, TARGET, None).plan
    weights = [layer.weight for layer in prepared.whole.layers]
    density = sum(map(np.count_nonzero, weights)) / sum(weight.size for weight in weights)
    assert Zeros.of(plan).text() == "Taken out: 32 filters and 32 input channels."
    assert not is_unpruned(plan) and density_of(plan) == pytest.approx(density)
    # Layers 1.0 and 1.3 do half the work of what they were, and the first one all of it.
    speedups = [each.speedup for each in times_of(plan)]
    assert speedups[0] == pytest.approx(1.0) and min(speedups[1:]) > 1.2
    assert verdict_of(plan).gaining >= 4


def test_products_with_whole_zeros_can_be_asked_for(prepared):
    plan = Compilation(prepared, TARGET, None, Options(strict_nonfinite=True)).plan
    assert plan.prepared is prepared.whole
    assert verdict_of(plan).removed == ""


def test_it_is_stored_in_half_precision_too(model):
    found = prepare(model, torch.zeros(X), dtype="bfloat16")
    assert [layer.spec.k for layer in found.layers] == [32, 16, 32, 16, 32]
    assert {layer.spec.dtype for layer in found.layers + found.whole.layers} == {"bfloat16"}


def test_layers_that_have_lost_filters_are_compared_with_nothing(prepared):
    """Another runtime computes all filters of a model's file."""

    def tensors_of(exposed):
        types = exposed.prepared.mod["main"].ret_ty.fields
        return [np.ones(fixed_shape(each), np.float32) for each in types]

    given, exposed = Exposed.of(prepared.whole), Exposed.of(prepared)
    tensors = tensors_of(given)
    pairs = zip(given.prepared.layers, given.places, strict=True)
    trace = {layer.name: (tensors[place.data], None, tensors[place.result]) for layer, place in pairs}
    checks = exposed.check_layers(tensors_of(exposed), ["dense_cpu"] * len(trace), SimpleNamespace(layers=trace))
    assert [each.name for each in checks if each.difference is None] == ["1.0", "2.0"]


def test_a_verdict_keeps_what_is_gone(prepared):
    verdict = verdict_of(Compilation(prepared, TARGET, None).plan)
    saved = json.loads(json.dumps(verdict.to_json()))
    assert Verdict.from_json(saved) == verdict
    # As it was written before.
    del saved["removed"]
    assert Verdict.from_json(saved) == replace(verdict, removed="")
