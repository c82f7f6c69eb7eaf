"""Models of convolutions whose shapes fit no tile: maps smaller than the taps, odd channels, sparse and dense."""

from functools import partial

import torch
from index_models import Case, Input
from torch import nn

# Channels, filters, taps, stride, padding, dilation, groups, rows and columns: maps smaller than the taps among them.
_LAYERS = {
    "1x1 map": (16, 24, 3, 1, 1, 1, 1, 1, 1),
    "taps beyond the map": (8, 16, 5, 1, 2, 1, 1, 3, 2),
    "stride": (5, 7, 3, 3, 1, 1, 1, 11, 10),
    "dilation": (6, 8, 3, 1, 3, 3, 1, 7, 9),
    "groups": (12, 18, 3, 2, 1, 1, 3, 9, 5),
    "depthwise": (19, 19, 3, 1, 1, 1, 19, 6, 7),
    "depthwise 5x5": (32, 32, 5, 2, 2, 1, 32, 4, 13),
    "pointwise": (33, 65, 1, 1, 0, 1, 1, 5, 3),
    "pointwise stride": (16, 16, 1, 2, 0, 1, 1, 7, 7),
    "rows": (16, 32, 3, 1, 1, 1, 1, 2, 31),
    "columns": (16, 32, 3, 1, 1, 1, 1, 31, 1),
}


def _layer(sizes, density):
    """A convolution, a ReLU and a sum, with this share of non-zeros, between two more: layouts are chosen for all."""
    channels, filters, taps, stride, padding, dilation, groups, rows, columns = sizes
    torch.manual_seed(0)
    first, last = nn.Conv2d(channels, channels, 1), nn.Conv2d(filters, 8, 1)
    layer = nn.Conv2d(channels, filters, taps, stride, padding, dilation, groups)
    with torch.no_grad():
        for each in (first, layer, last):
            each.weight *= torch.rand(each.weight.shape) < density
    module = nn.Sequential(first, nn.ReLU(), layer, nn.ReLU(), last).eval()
    shape = (1, channels, rows, columns)

    def reference(arrays):
        with torch.no_grad():
            return [module(*map(torch.from_numpy, arrays)).numpy()]

    return Case(lambda: (module, (torch.zeros(shape),)), [Input(shape)], reference)


CASES = {
    **{f"layer, {name}": partial(_layer, sizes, 1) for name, sizes in _LAYERS.items()},
    **{f"sparse layer, {name}": partial(_layer, sizes, 0.2) for name, sizes in _LAYERS.items()},
}
