"""Schedules, the training loop and the report."""

import itertools

import pytest
import torch
from torch import nn

from tvm_sparse import prune
from tvm_sparse.errors import UsageError
from tvm_sparse.prune.layers import mask_of


def task():
    """Two classes by the sign of the mean, in four batches."""
    torch.manual_seed(0)
    x = torch.randn(128, 1, 6, 6) + torch.tensor([-0.4, 0.4]).repeat(64)[:, None, None, None]
    return list(zip(x.split(32), torch.arange(2).repeat(64).split(32), strict=True))


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 2))


def test_the_cubic_schedule():
    assert prune.one_shot(0.9) == [0.9]
    assert prune.cubic(0.8, 2) == pytest.approx([0.8 - 0.8 / 8, 0.8])
    steps = prune.cubic(0.9, 6, start=0.3)
    assert steps[-1] == 0.9 and steps == sorted(steps)
    taken = [after - before for before, after in itertools.pairwise([0.3, *steps])]
    assert taken == sorted(taken, reverse=True)


def test_it_learns_while_it_prunes():
    net, data, amounts = network(), task(), []

    def prune_to(amount):
        amounts.append(amount)
        prune.vector(net[2], 4, amount)

    schedule = prune.cubic(0.8, 4)
    assert prune.fine_tune(net, data, epochs=12, schedule=schedule, prune_to=prune_to, rate=0.1) is net
    assert amounts == schedule and not net.training
    assert 1 - mask_of(net[2]).mean() == pytest.approx(0.8, abs=0.01)
    with torch.no_grad():
        right = sum(int((net(x).argmax(1) == y).sum()) for x, y in data)
    assert right > 115


def test_another_loss_is_taken():
    net, seen = network(), []

    def loss(y, target):
        seen.append(len(target))
        return y.square().mean()

    prune.fine_tune(net, task(), epochs=1, loss=loss)
    assert seen == [32] * 4


def test_the_report_says_what_is_there():
    net = network()
    prune.filters(net[2], 0.5)
    first, second, linear = prune.report(net)
    assert (first["layer"], first["pattern"], first["zeros"], first["bytes"]) == ("0", "dense", 0, 8 * 9 * 4)
    assert (second["pattern"], second["zeros"], second["weights"]) == ("filters", 0.5, 8 * 8 * 9)
    assert second["bytes"] == second["dense_bytes"] // 2 + 4 * 8
    assert linear["layer"] == "5"


@pytest.mark.parametrize(
    ("data", "more", "sentence"),
    [
        ([], {}, "there are no batches"),
        ([1], {"epochs": 0}, "too few epochs, found 0; allowed: 1 or more"),
        ([1], {"epochs": 2, "schedule": prune.cubic(0.9, 3), "prune_to": print}, "too few epochs, found 2"),
        ([1], {"schedule": [0.5]}, "a schedule needs to know how to prune; give prune_to"),
    ],
)
def test_mistakes_are_one_sentence(data, more, sentence):
    with pytest.raises(UsageError) as error:
        prune.fine_tune(network(), data, **more)
    assert sentence in str(error.value)
