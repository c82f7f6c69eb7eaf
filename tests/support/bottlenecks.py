"""Bottlenecks of residual networks, prepared in half precision."""

import functools

import torch
from torch import nn

from tvm_sparse.frontend.prepare import prepare


class Bottleneck(nn.Module):
    """As torchvision's, batch norm folded."""

    def __init__(self, narrow=64):
        super().__init__()
        self.first, self.second = nn.Conv2d(256, narrow, 1), nn.Conv2d(narrow, narrow, 3, padding=1)
        self.third = nn.Conv2d(narrow, 256, 1)

    def forward(self, x):
        return torch.relu(self.third(torch.relu(self.second(torch.relu(self.first(x))))) + x)


@functools.cache
def prepared_of(batch=64, size=56, narrow=64, count=2):
    torch.manual_seed(0)
    model = nn.Sequential(*(Bottleneck(narrow) for _ in range(count)))
    return prepare(model, (torch.zeros(batch, 256, size, size),), None, None, "float16")
