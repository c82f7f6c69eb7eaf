"""Pruning a model: the total holds, sparsity goes where time is gained, and the estimates behind it are monotone."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from tvm_sparse import prune
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.conv.structure import Structure
from tvm_sparse.errors import UsageError
from tvm_sparse.prune import layer_times
from tvm_sparse.prune.allocation import Choices, allocate
from tvm_sparse.prune.layer_specs import layer_specs
from tvm_sparse.prune.layers import mask_of, prunable
from tvm_sparse.target.resolve import resolve_target

X = torch.randn(1, 3, 32, 32)


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 64, 3, padding="same"),
        nn.MaxPool2d(8),
        nn.Conv2d(64, 64, 3, padding=1),
        nn.Conv2d(64, 96, 3, stride=2, padding=(1, 0), groups=2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(96, 32),
    )


def zeros_of(net):
    masks = [mask_of(layer) for layer in prunable(net).values()]
    return sum((~mask).sum() for mask in masks) / sum(mask.size for mask in masks)


@pytest.mark.parametrize(
    "pattern", ["unstructured", "vector16", "vector8p", "slice32cr", "slice32c+vector8", "channels4"]
)
@pytest.mark.parametrize("amount", [0.3, 0.9])
def test_the_total_holds(pattern, amount):
    net = network()
    rows = prune.global_(net, X, target="cpu", amount=amount, pattern=pattern)
    assert zeros_of(net) == pytest.approx(amount, abs=0.015)
    for row, (name, layer) in zip(rows, prunable(net).items(), strict=True):
        assert (row.layer, row.amount) == (name, pytest.approx(1 - mask_of(layer).mean()))
        assert row.time_us <= row.dense_time_us
        fitted = Structure.named(pattern).fitted(
            layer.weight.shape[0] // getattr(layer, "groups", 1), layer.weight.shape[1]
        )
        assert row.pattern == fitted.name


def test_two_of_four_takes_layers_as_they_are():
    net = network()
    prune.global_(net, X, target="cpu", amount=0.5, pattern="2:4")
    assert zeros_of(net) == 0.5


def test_sparsity_goes_where_time_is_gained():
    """Two layers that are alike but for their measured times."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 16, 1), nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1))
    net[2].weight.data = net[1].weight.data.clone()
    slow, fast = {1.0: 1000.0, 0.0: 10.0}, {1.0: 20.0, 0.0: 10.0}
    for times in ({"1": slow, "2": fast}, {"1": fast, "2": slow}):
        one, other = prune.global_(copy.deepcopy(net), X, target="cpu", amount=0.5, pattern="vector4", times=times)
        more, less = (one, other) if times["1"] is slow else (other, one)
        assert more.amount > less.amount + 0.2
        assert more.dense_time_us == 1000 and more.time_us == pytest.approx(10 + 990 * (1 - more.amount))


def test_saliency_counts_too():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 16, 1), nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1))
    saliency = prune.magnitude(net)
    same = {1.0: 100.0, 0.0: 10.0}
    scaled = {"1": saliency["1"] * 20, "2": saliency["2"]}
    one, other = prune.global_(
        net, X, target="cpu", amount=0.5, pattern="vector4", saliency=scaled, times={"1": same, "2": same}
    )
    assert other.amount > one.amount + 0.3


def test_a_knapsack_is_the_best_of_all_choices():
    """Against every combination: where the total is met by whole steps, greedy is optimal."""
    rng = np.random.default_rng(0)
    grid = [0.0, 0.25, 0.5, 0.75]
    layers = [Choices(100, grid, np.cumsum([0, *np.sort(rng.random(3))]).tolist(), [0, 1, 2, 3]) for _ in range(3)]
    for amount in (0.25, 0.5):
        found = allocate(layers, amount)
        lost = sum(np.interp(share, grid, layer.lost) for share, layer in zip(found, layers, strict=True))
        every = [
            sum(layer.lost[i] for layer, i in zip(layers, index, strict=True))
            for index in np.ndindex(4, 4, 4)
            if sum(index) == round(amount * 12)
        ]
        assert sum(found) / 3 == pytest.approx(amount)
        assert lost == pytest.approx(min(every))


def test_a_jump_over_a_bad_choice():
    """The hull: at half of the zeros nothing is gained yet, at all of them much."""
    slow = Choices(100, [0.0, 0.5, 0.9], [0.0, 1.0, 2.0], [0.0, 0.0, 100.0])
    even = Choices(100, [0.0, 0.5, 0.9], [0.0, 1.0, 2.0], [0.0, 20.0, 36.0])
    assert allocate([slow, even], 0.45) == [0.9, 0.0]


def test_the_convolutions_of_a_model_are_seen():
    net = network()
    net[4].eval()
    specs = layer_specs(net, X, prunable(net))
    assert specs["2"] == [ConvSpec(1, 16, 32, 32, 64, 3, 3, padding=(1, 1, 1, 1))]
    assert specs["5"] == [ConvSpec(1, 64, 4, 4, 96, 3, 3, (2, 2), (1, 0, 1, 0), groups=2)]
    assert specs["8"] == [ConvSpec(1, 96, 1, 1, 32, 1, 1)]
    assert [part.training for part in net] == [index != 4 for index in range(len(net))]
    assert net.training and not net[2]._forward_pre_hooks


def test_gradual_pruning_goes_on_where_it_was():
    net, zeros, before = network(), [], None
    for amount in prune.cubic(0.9, 4):
        prune.global_(net, X, target="cpu", amount=amount, pattern="vector8p")
        masks = [mask_of(layer) for layer in prunable(net).values()]
        assert before is None or not any((now & ~then).any() for now, then in zip(masks, before, strict=True))
        zeros.append(zeros_of(net))
        before = masks
    np.testing.assert_allclose(zeros, prune.cubic(0.9, 4), atol=0.02)
    names = {name: Structure.of(mask_of(layer)).name for name, layer in prunable(net).items()}
    assert names["2"] == names["4"] == "vector8p"


def test_a_measured_table_is_a_line_that_never_falls():
    clock = layer_times.measured("conv", {1.0: 30.0, 0.5: 40.0, 0.1: 10.0})
    assert [clock(density) for density in (0.0, 0.1, 0.3, 0.5, 1.0)] == [10, 10, 20, 30, 30]


@pytest.mark.parametrize("target", ["llvm", {"kind": "cuda", "arch": "sm_90"}])
def test_estimates_fall_with_density(target):
    spec = ConvSpec(1, 64, 28, 28, 64, 3, 3, padding=(1, 1, 1, 1))
    clock = layer_times.estimated(spec, resolve_target(target))
    times = [clock(density) for density in (0.02, 0.05, 0.1, 0.3, 0.5, 1.0)]
    assert times == sorted(times) and 0 < times[0] < times[-1]


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"amount": 1.0}, "amount is not usable, found 1.0"),
        ({"amount": 0.6, "pattern": "2:4"}, "amount is not usable, found 0.6"),
        ({"pattern": "nonsense"}, "unknown pattern, found nonsense"),
        ({"names": ["2", "nonsense"]}, "no such layer, found nonsense"),
        ({"times": {"0": {1: 2}}}, "times name a layer that is not pruned, found 0; allowed: 2, 4, 5, 8"),
        ({"times": {"2": {}}}, "times of 2: not usable"),
        ({"times": {"2": {0.5: -1}}}, "times of 2: not usable"),
        ({"saliency": {"2": torch.zeros(64, 16, 3, 3)}}, "a layer has no saliency, found 4"),
        ({"saliency": {"2": torch.zeros(1)}}, "layer 2: its saliency does not fit the weight, found (1,)"),
        ({"target": "nonsense"}, "unknown target"),
    ],
)
def test_mistakes_are_one_sentence(more, sentence):
    with pytest.raises(UsageError) as error:
        prune.global_(network(), X, **{"target": "cpu", **more})
    assert sentence in str(error.value)


def test_a_layer_that_is_never_called_is_named():
    net = network()
    net.spare = nn.Identity()
    net.spare.conv = nn.Conv2d(8, 8, 1)
    with pytest.raises(UsageError, match=r"layer spare\.conv: the example does not reach it"):
        prune.global_(net, X, target="cpu")
