"""Random layers of torch that are convolutions of other ranks than two, or transposed."""

import numpy as np
import torch
from torch import nn

CLASSES = (nn.Conv1d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


class Side(nn.ModuleList):
    """Layers side by side, each on an input of its own."""

    def forward(self, *inputs):
        return [layer(x) for layer, x in zip(self, inputs, strict=True)]


def is_usable(layer, x):
    """Whether torch computes it, and anything of it."""
    try:
        return layer(x).numel() > 0
    except RuntimeError:
        return False


def random_layers(kind, seed, count):
    """`count` layers, a part of whose weights is zero, and inputs for them."""
    random, rank = np.random.default_rng(seed), int(kind.__name__[-2])
    torch.manual_seed(seed)
    layers, inputs = [], []

    def some(low, high):
        return tuple(int(each) for each in random.integers(low, high, rank))

    while len(layers) < count:
        n, groups, c, k = (int(each) for each in random.integers(1, 4, 4))
        numbers = {"stride": some(1, 4), "padding": some(0, 3), "dilation": some(1, 3), "groups": groups}
        if "Transpose" in kind.__name__:
            numbers["output_padding"] = tuple(int(each) for each in random.integers(0, numbers["stride"]))
        layer = kind(c * groups, k * groups, some(1, 5), **numbers, bias=bool(random.integers(2))).eval()
        with torch.no_grad():
            layer.weight *= torch.rand(layer.weight.shape) < random.choice([0.3, 1.0])
        x = torch.randn(n, c * groups, *some(1, 8))
        # Of others the kernel is larger than the input.
        if is_usable(layer, x):
            layers.append(layer)
            inputs.append(x)
    return Side(layers).eval(), inputs
