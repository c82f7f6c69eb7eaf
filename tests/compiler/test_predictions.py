"""Predictions stand in for records, and never for what was measured on this machine."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from test_build_model import TARGET, record
from torch import nn

from tvm_sparse.compiler.plan.beside_layers import moved_bytes
from tvm_sparse.compiler.plan.kernel_selection import decide
from tvm_sparse.compiler.plan.predict import predicted
from tvm_sparse.compiler.plan.reasons import Kind
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.frontend.passes.find_convolutions import ConvLayer
from tvm_sparse.frontend.prepare import prepare
from tvm_sparse.logs.tuning_log import TuningLog


@pytest.fixture
def layer():
    """One for which a sparse kernel is predicted."""
    spec = ConvSpec(n=1, c=64, h=28, w=28, k=64, r=3, s=3, padding=(1, 1, 1, 1))
    rng = np.random.default_rng(0)
    weight = np.where(rng.random(spec.weight_shape) < 0.1, 1.5, 0).astype(np.float32)
    assert predicted(spec, SparsityPattern.of(weight), TARGET) is not None
    return ConvLayer("only", spec, weight, None)


def test_without_a_record_the_layer_is_predicted(layer, tmp_path):
    (decision,) = decide([layer], TARGET, TuningLog(tmp_path / "log.jsonl"), predict=True)
    assert decision.reason.kind is Kind.PREDICTED
    assert not decision.schedule.startswith("dense")


@pytest.mark.parametrize(
    ("dense_time_us", "schedule", "kind"),
    [(8.0, "folded_cpu:measured", Kind.FASTER), (1.0, "dense_cpu", Kind.SLOWER)],
)
def test_what_was_measured_here_is_not_predicted(layer, tmp_path, dense_time_us, schedule, kind):
    log = TuningLog(tmp_path / "log.jsonl")
    log.append(record(layer, schedule="folded_cpu:measured", time_us=2.0, dense_time_us=dense_time_us))
    (decision,) = decide([layer], TARGET, log, predict=True)
    assert (decision.schedule, decision.reason.kind) == (schedule, kind)


def test_what_was_measured_with_another_epilogue_is_a_prediction(layer, tmp_path):
    log = TuningLog(tmp_path / "log.jsonl")
    log.append(record(layer, schedule="folded_cpu:measured", time_us=2.0, dense_time_us=8.0))
    clipped = replace(layer, spec=replace(layer.spec, bias=True, relu=True, relu_max=6.0))
    (decision,) = decide([clipped], TARGET, log, predict=True)
    assert (decision.schedule, decision.reason.kind) == ("folded_cpu:measured", Kind.NEAR)
    assert decision.transferred


@pytest.mark.parametrize(("density", "is_used"), [(0.08, True), (0.04, False)])
def test_what_was_measured_with_far_fewer_non_zeros_is_none_of_this_layer(layer, tmp_path, density, is_used):
    """Dense may win in the meantime, in proportion to them or not; without predictions it is what is known."""
    fewer = layer.weight * (np.random.default_rng(1).random(layer.weight.shape) < 10 * density)
    log = TuningLog(tmp_path / "log.jsonl")
    log.append(record(layer, fewer, schedule="folded_cpu:measured", time_us=2.0, dense_time_us=800.0))
    (decision,) = decide([layer], TARGET, log, predict=True)
    assert decision.reason.kind is (Kind.FASTER if is_used else Kind.PREDICTED)
    (decision,) = decide([layer], TARGET, log)
    assert decision.schedule == "folded_cpu:measured"


def test_what_lies_between_layers_counts_once():
    """A chain of elements is one kernel: the layer's result is read, the chain's and the pool's are written."""
    network = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.SiLU(), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten())
    assert moved_bytes(prepare(network.eval(), torch.zeros(1, 8, 8, 8))) == 4 * (512 + 512 + 128)
