"""Layers that compute the max pool behind them too: found, decided, replaced, and on a GPU right."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from tvm.target import Target

from tvm_sparse.autotune.session import tuned_layers
from tvm_sparse.compiler import build_model, build_plan
from tvm_sparse.compiler.pipeline import decide_together
from tvm_sparse.compiler.plan.choice import Default, Predicted
from tvm_sparse.compiler.plan.decision import Decision
from tvm_sparse.compiler.plan.dense_fallback import to_dense
from tvm_sparse.compiler.plan.plan import Plan
from tvm_sparse.compiler.plan.pooled_layers import pooled_space, with_pools
from tvm_sparse.compiler.plan.reasons import NO_LOG, Kind
from tvm_sparse.compiler.rewriting.replace_convolutions import replace_convolutions
from tvm_sparse.conv.reference import relative_difference
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.frontend.prepare import PreparedModel, prepare
from tvm_sparse.logs.distill import best, distill
from tvm_sparse.logs.record import TuningRecord
from tvm_sparse.logs.tuning_log import TuningLog
from tvm_sparse.schedules.lookup import find_space
from tvm_sparse.target.fingerprint import fingerprint_of
from tvm_sparse.target.resolve import resolve_target, target_json

CUDA = Target({"kind": "cuda", "arch": "sm_90"})
POOLED = "pooled_cuda:multistage-32x32-pixels1"


class Pooled(nn.Module):
    """Two layers with a 2x2 pool behind them, of which the second's is read twice; others with other pools."""

    def __init__(self, last: nn.Module | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        convolutions = [nn.Conv2d(channels, 8, 3, padding=1) for channels in (4, 8, 8)]
        for each in convolutions:
            each.weight.data *= torch.rand(each.weight.shape) < 0.2
        first, second, third = convolutions
        pool = nn.MaxPool2d(2)
        self.first = nn.Sequential(first, nn.ReLU(), pool)
        self.second = nn.Sequential(second, nn.ReLU())
        self.third = nn.Sequential(third, last or nn.MaxPool2d(2))
        self.pool = pool

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, 4, 32, 32) -> (N, 8, 4, 4)."""
        x = self.second(self.first(x))
        return self.third(self.pool(x) + x[:, :, ::2, ::2])


def prepared(model: nn.Module | None = None, images: int = 2) -> PreparedModel:
    """`model` as the compiler sees it."""
    return prepare((model or Pooled()).eval(), torch.zeros(images, 4, 32, 32))


def folded(of: PreparedModel) -> list[Decision]:
    """Every layer folded."""
    names = ["folded_cuda" for _ in of.layers]
    return [
        Decision(layer.name, 0.2, "unstructured", Predicted(name, None, estimate_us=100.0), NO_LOG)
        for layer, name in zip(of.layers, names, strict=True)
    ]


def pooled(of: PreparedModel, decisions: list[Decision], target: Target, log: TuningLog | None) -> list[Decision]:
    """What is decided once pools are looked at."""
    return list(with_pools(Plan.of(of, decisions, target), log).decisions)


@pytest.mark.parametrize(
    ("last", "is_found"),
    [
        (nn.MaxPool2d(2), True),
        (nn.MaxPool2d(2, ceil_mode=True), True),
        (nn.MaxPool2d(3, 2, 1), False),
        (nn.MaxPool2d(2, 1), False),
        (nn.MaxPool2d(2, dilation=2), False),
        (nn.MaxPool2d(2, padding=1), False),
        (nn.MaxPool2d((2, 1)), False),
        (nn.AvgPool2d(2), False),
    ],
)
def test_windows_side_by_side_are_found(last: nn.Module, is_found: bool) -> None:
    """And only where nothing else reads the outputs."""
    groups = prepared(Pooled(last)).groups
    assert [group.behind is not None for group in groups] == [True, False, is_found]


def test_outputs_of_more_than_a_cache_are_pooled() -> None:
    """By prediction, of folded layers."""
    small, large = prepared(), prepared(images=3000)
    assert pooled(small, folded(small), CUDA, None) == folded(small)
    first, second, third = pooled(large, folded(large), CUDA, None)
    assert first.schedule.startswith("pooled_cuda:") and first.chosen is not None and first.transferred
    assert first.schedule.startswith("pooled_cuda:") and first.reason.kind is Kind.PREDICTED
    assert [second.schedule, third.schedule] == ["folded_cuda", "folded_cuda"]
    dense = [replace(each, choice=Default("dense_cudnn")) for each in folded(large)]
    assert pooled(large, dense, CUDA, None) == dense
    assert pooled(large, folded(large), Target("llvm"), None) == folded(large)
    assert to_dense(first, CUDA, "it is wrong").schedule.startswith("dense")


def record_of(of: PreparedModel, time_us: float) -> TuningRecord:
    """Of a kernel for the first layer that pools."""
    layer = of.layers[0]
    space = find_space(POOLED, layer.spec, layer.pattern, CUDA)
    return TuningRecord(
        spec=layer.spec,
        pattern=layer.pattern,
        schedule=POOLED,
        decisions=space.starts()[0],
        target=target_json(CUDA),
        fingerprint=fingerprint_of(CUDA),
        status="ok",
        times_us=(time_us,) * 5,
        dense_times_us=(500.0,) * 5,
        cold_times_us=(time_us,) * 5,
        dense_cold_times_us=(500.0,) * 5,
        error=0.1,
        baseline="dense_cuda",
        seed=0,
    )


@pytest.mark.parametrize(("time_us", "is_chosen"), [(90.0, True), (150.0, False)])
def test_a_record_is_taken_where_it_is_faster_than_both(time_us: float, is_chosen: bool, tmp_path: Path) -> None:
    """And never for a layer without such a pool, whose kernel it is not."""
    model, log = prepared(), TuningLog(tmp_path / "log.jsonl")
    log.append(record_of(model, time_us))
    first = pooled(model, folded(model), CUDA, log)[0]
    assert (first.schedule == POOLED) == is_chosen
    if is_chosen:
        assert first.reason.kind is Kind.FASTER
        assert not first.transferred and first.time_us == time_us
    layer = model.layers[0]
    assert log.lookup(layer.spec, layer.pattern, fingerprint_of(CUDA)) is None and not best(log.records)
    assert [each.schedule for each in distill(log.records)] == [POOLED]
    without = prepared(Pooled().first[:2])
    assert not any(each.schedule == POOLED for each in decide_together(without, CUDA, log))


def test_a_record_of_fewer_non_zeros_is_expected_to_take_longer(tmp_path: Path) -> None:
    """As long as their code is, at least."""
    model, log = prepared(), TuningLog(tmp_path / "log.jsonl")
    weight = model.layers[0].weight * (np.arange(model.layers[0].weight.size) % 2).reshape(model.layers[0].weight.shape)
    log.append(replace(record_of(model, 50.0), pattern=SparsityPattern.of(weight.astype(np.float32))))
    first = pooled(model, folded(model), CUDA, log)[0]
    assert first.schedule == POOLED and first.transferred and first.time_us is not None and first.time_us > 50
    # Without a time of the layer's own kernel a record says nothing.
    unknown = [replace(each, choice=Predicted("folded_cuda", None)) for each in folded(model)]
    assert pooled(model, unknown, CUDA, log) == unknown


def test_the_pool_is_gone() -> None:
    """One call writes what it wrote; a kernel that does not pool leaves it."""
    model = prepared()
    names = [POOLED, "folded_cuda", "folded_cuda"]
    decisions = [replace(each, choice=Default(name)) for each, name in zip(folded(model), names, strict=True)]
    kernels = build_plan.kernels_of(model.layers, decisions, CUDA)
    module = replace_convolutions(model.mod, kernels)
    text = module.script()
    assert text.count("max_pool2d") == 2 and text.count("call_tir") == 3
    assert 'out_ty=R.Tensor((2, 8, 16, 16), dtype="float32")' in text


def test_only_layers_with_a_pool_are_tuned_for_it() -> None:
    """Where nothing else is asked for."""
    model = prepared()
    first, _, third = model.layers
    assert [each.name for each in tuned_layers(model.layers, ["pooled_cuda"])] == [first.name, third.name]
    assert (
        tuned_layers(model.layers, ["pooled_cuda", "folded_cuda"]) == tuned_layers(model.layers, None) == model.layers
    )


@pytest.mark.gpu
def test_models_are_right_on_a_gpu() -> None:
    """Against float64, predicted."""
    model, x = Pooled(), np.random.default_rng(0).standard_normal((2000, 4, 32, 32)).astype(np.float32)
    target = resolve_target("cuda")
    ready = prepare(model.eval(), torch.from_numpy(x))
    decisions = pooled(ready, folded(ready), target, None)
    found = build_model.build(ready, decisions, target)
    assert found.report()[0]["schedule"].startswith("pooled_cuda")
    expected = model.double()(torch.from_numpy(x).double()).detach().numpy()
    assert relative_difference(found(torch.from_numpy(x).cuda()).cpu().numpy(), expected) < 1e-6


def test_pools_promise_something_where_the_output_exceeds_the_cache() -> None:
    """64 KB an image and two layers; `optimize` measures what promises something."""
    spaces = [pooled_space(layer, CUDA) for layer in prepared(images=2000).layers]
    assert [None if each is None else each.name for each in spaces] == [POOLED, None, None]
    assert not any(pooled_space(layer, CUDA) for layer in prepared(images=2).layers)
    assert not any(pooled_space(layer, resolve_target("llvm")) for layer in prepared(images=2000).layers)
