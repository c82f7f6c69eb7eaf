"""Winograd's kernels: offered and predicted where they pay, and never where infinity shall spread as IEEE says."""

import numpy as np
import pytest
import torch
from torch import nn

import tvm_sparse as ts
from tvm_sparse.compiler.plan.predict import predicted
from tvm_sparse.conv.error_bounds import EXACT, WINOGRAD
from tvm_sparse.conv.random_weights import normal_weight
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.errors import UsageError
from tvm_sparse.schedules.lookup import arithmetic_of, find_space, spaces_of
from tvm_sparse.target.resolve import resolve_target

PADDED = {"padding": (1, 1, 1, 1)}
AVX512, AVX2 = (resolve_target({"kind": "llvm", "mcpu": mcpu, "num-cores": 1}) for mcpu in ("znver4", "znver3"))
HOST = '{"kind":"llvm","opt-level":0,"num-cores":1}'


def test_it_has_a_bound_of_its_own():
    assert arithmetic_of("winograd_cpu:filters") == WINOGRAD and arithmetic_of("dense_cpu:filters") == EXACT


@pytest.mark.parametrize("target", [AVX512, AVX2], ids=["AVX-512", "AVX2"])
@pytest.mark.parametrize(
    ("channels", "width", "pays"), [(64, 56, True), (128, 28, True), (256, 14, True), (512, 28, True), (3, 224, False)]
)
def test_it_is_predicted_for_dense_layers_where_it_pays(channels, width, pays, target):
    """Of few channels the transforms take longer than what they save."""
    spec = ConvSpec(1, channels, width, width, max(channels, 64), 3, 3, **PADDED)
    found = predicted(spec, SparsityPattern.of(normal_weight(spec, 1.0, 0)), target)
    assert found is not None and found.schedule == "winograd_cpu" and found.speedup < 2.5 if pays else found is None


@pytest.mark.parametrize("target", [AVX512, AVX2], ids=["AVX-512", "AVX2"])
def test_layers_with_many_zeros_are_left_to_sparse_kernels(target):
    spec = ConvSpec(1, 64, 28, 28, 64, 3, 3, **PADDED)
    for density, sparse in ((0.1, True), (0.7, False)):
        pattern = SparsityPattern.of(normal_weight(spec, density, 0))
        found = predicted(spec, pattern, target)
        assert found is not None and (found.schedule != "winograd_cpu") is sparse
        spaces, reasons = spaces_of(spec, pattern, target, ["winograd_cpu"])
        assert bool(spaces) is not sparse and (not sparse or "it is for 0.15 and more" in reasons["winograd_cpu"])


def test_a_record_of_other_zeros_is_found():
    spec = ConvSpec(1, 64, 28, 28, 64, 3, 3, **PADDED)
    sparse = SparsityPattern.of(normal_weight(spec, 0.1, 0))
    assert find_space("winograd_cpu:filters", spec, sparse, AVX2).variant == "filters"
    for wrong in ("winograd_cpu:filters8", "winograd_cpu"):
        with pytest.raises(UsageError, match="does not serve"):
            find_space(wrong, spec, sparse, AVX2)


@pytest.mark.parametrize(
    "change",
    [{"stride": (2, 2)}, {"dilation": (2, 2)}, {"groups": 2}, {"dtype": "float16"}, {"r": 1}, {"s": 5}, {"h": 1}],
    ids=lambda change: next(iter(change)),
)
def test_other_convolutions_are_not_served(change):
    spec = ConvSpec(**{"n": 1, "c": 4, "h": 9, "w": 3, "k": 8, "r": 3, "s": 3, "padding": (1, 1, 2, 2), **change})
    _, reasons = spaces_of(spec, SparsityPattern.of(normal_weight(spec, 1.0, 0), spec.groups), AVX2, ["winograd_cpu"])
    assert reasons["winograd_cpu"].startswith("only 3x3 taps")


def test_a_model_without_zeros_takes_it_unless_products_shall_be_those_of_ieee():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.ReLU()).eval()
    x = torch.randn(1, 64, 14, 14)
    for strict, schedule in ((False, "winograd_cpu"), (True, "dense_cpu")):
        fast = ts.compile(model, x, target=HOST, log=None, strict_nonfinite=strict)
        (row,) = fast.decisions
        assert row["schedule"].startswith(schedule)
        with torch.no_grad():
            np.testing.assert_allclose(fast(x).numpy(), model(x).numpy(), atol=1e-5)
