"""Which batches run in turns, and that what is compiled so is the model."""

import numpy as np
import pytest
import torch
import zoo
from torch import nn
from tvm.target import Target

import tvm_sparse as ts
from tvm_sparse.request.request import Request
from tvm_sparse.request.turns import in_turns

pytestmark = pytest.mark.usefixtures("unoptimised")


def network(side=72, features=8):
    """Two layers whose tensors of eight samples fill a core's cache, those of one do not, and a linear one."""
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.AdaptiveAvgPool2d(1))
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(16, features)).eval()
    model[2].weight.data *= torch.rand_like(model[2].weight) < 0.2
    return model, torch.zeros(1, 3, side, side)


def request(threads=1, **sizes):
    return Request.of(*network(**sizes), batch=8, target={**zoo.UNOPTIMISED, "num-cores": threads})


@pytest.mark.parametrize(("threads", "turn"), [(1, 1), (2, 2), (3, 2), (4, 4), (8, 8)])
def test_a_turn_has_a_sample_a_core(threads, turn):
    """Or fewer, where they do not divide the batch."""
    asked = request(threads)
    prepared = asked.prepared(asked.variants[0])
    assert [layer.spec.n for layer in prepared.layers] == [turn, turn]
    assert prepared.turns == 8 // turn


@pytest.mark.parametrize(
    "sizes", [{"side": 8}, {"features": 100_000}], ids=["tensors fit the cache", "weights are more than tensors"]
)
def test_a_batch_stays_whole_where_turns_gain_nothing(sizes):
    asked = request(**sizes)
    assert asked.prepared(asked.variants[0]).turns == 1


def test_a_gpu_has_no_turns():
    asked = request()
    whole = asked.prepared(asked.variants[0], in_parts=False)
    assert whole.turns == 1 and in_turns(whole, asked.resolved).turns == 8
    assert in_turns(whole, Target({"kind": "cuda", "arch": "sm_90"}, host={"kind": "llvm"})) is whole


def test_a_compiled_batch_in_turns_is_the_model(tmp_path):
    """Called, saved and loaded, exported, and checked layer by layer."""
    model, example = network()
    options = {"batch": [1, 8], "threads": 2}
    compiled = ts.compile(model, example, compare=True, **options)
    assert compiled.comparison.reference == "torch"
    (x,) = zoo.inputs_of([(11, 3, 72, 72)])
    (expected,) = zoo.run_torch(model, x)
    ts.save(compiled, tmp_path / "model.sparse")
    for each in (compiled, ts.load(tmp_path / "model.sparse")):
        assert [spec.shape for spec in each.signature.inputs] == [(8, 3, 72, 72)]
        np.testing.assert_allclose(each(x), expected, rtol=1e-4, atol=1e-5)
    report = ts.check(model, example, **options)
    assert report.failure is None
    assert "4 turns" in repr(ts.inspect(model, example, **options))
