"""Saliency: magnitudes, and Taylor's against a hand computation."""

import copy

import pytest
import torch
from torch import nn

from tvm_sparse import prune
from tvm_sparse.errors import UsageError


def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 2, 1), nn.Conv2d(2, 3, 1, bias=False), nn.Flatten(), nn.Linear(3, 2))


def test_magnitudes_are_shares_of_their_layer():
    net = small()
    found = prune.magnitude(net)
    assert list(found) == ["1", "3"]
    for name, each in found.items():
        weight = net.get_submodule(name).weight.detach().abs()
        torch.testing.assert_close(each, weight / weight.sum())


def test_taylor_by_hand():
    """y = sum_c w_c x_c, loss = y^2 / 2: the gradient is y x, over two batches."""
    net = nn.Sequential(nn.Conv2d(2, 1, 1, bias=False), nn.Flatten())
    net[0].weight.data = torch.tensor([2.0, -1.0]).reshape(1, 2, 1, 1)
    batches = [torch.tensor(x).reshape(1, 2, 1, 1) for x in ([1.0, 3.0], [2.0, 1.0])]
    # y = -1 and 3; |w g| = |2 * -1|, |-1 * -3| and |2 * 6|, |-1 * 3|.
    found = prune.taylor(net, [(x, None) for x in batches], names=["0"], loss=lambda y, _: (y**2 / 2).sum())
    torch.testing.assert_close(found["0"].flatten(), torch.tensor([(2 + 12) / 2, (3 + 3) / 2]))


def test_taylor_leaves_the_model_alone_and_masked_weights_have_none():
    net = small().train()
    net.append(nn.BatchNorm1d(2))
    prune.unstructured(net[1], 0.5)
    state = {name: value.clone() for name, value in net.state_dict().items()}
    data = [(torch.randn(4, 1, 1, 1), torch.randint(2, (4,))) for _ in range(2)]
    found = prune.taylor(net, data)
    assert net.training and all(parameter.grad is None for parameter in net.parameters())
    assert all(torch.equal(value, state[name]) for name, value in net.state_dict().items())
    assert (found["1"][net[1].weight_mask == 0] == 0).all() and (found["1"][net[1].weight_mask == 1] > 0).all()


def test_saliencies_of_half_precision_are_float32():
    """Of float16 a sum of magnitudes is infinite, or a share and a product with a gradient zero."""
    net = nn.Sequential(nn.Linear(512, 512, bias=False)).half()
    net[0].weight.data.normal_(generator=torch.Generator().manual_seed(0))
    wide, x = copy.deepcopy(net).float(), torch.randn(2, 512)
    found, expected = (prune.magnitude(each, ["0"])["0"] for each in (net, wide))
    torch.testing.assert_close(found, expected)
    found, expected = (
        prune.taylor(each, [(like, None)], names=["0"], loss=lambda y, _: y.float().sum() / 1000)["0"]
        for each, like in ((net, x.half()), (wide, x.half().float()))
    )
    # A gradient is in the weight's type.
    torch.testing.assert_close(found, expected, rtol=0.01, atol=2**-24)
    assert found.dtype == torch.float32


def test_mistakes_are_one_sentence():
    with pytest.raises(UsageError, match="there are no batches"):
        prune.taylor(small(), [])
    with pytest.raises(UsageError, match="no such layer, found nonsense; allowed: 0, 1, 3"):
        prune.magnitude(small(), ["nonsense"])
    with pytest.raises(UsageError, match="no layer to prune"):
        prune.magnitude(nn.Sequential(nn.Conv2d(1, 1, 1)))
    unused = small()
    unused.add_module("4", nn.Linear(2, 2))
    unused.forward = lambda x: unused[3](unused[2](unused[1](unused[0](x))))
    with pytest.raises(UsageError, match=r"layer 4: the loss does not depend on it; leave it out of names"):
        prune.taylor(unused.train(), [(torch.randn(4, 1, 1, 1), torch.randint(2, (4,)))])
    assert unused.training
