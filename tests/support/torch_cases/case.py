"""What a case of the torch conformance tests is: functions or modules, each called with the same tensors."""

from __future__ import annotations

import math

import torch
from torch import nn


class Together(nn.Module):
    """Outputs of several functions or modules of the same inputs, one after the other."""

    def __init__(self, *steps):
        super().__init__()
        self.steps = steps
        self.layers = nn.ModuleList(step for step in steps if isinstance(step, nn.Module))
        self.eval()

    def forward(self, *inputs):
        return [step(*inputs) for step in self.steps]


def f32(*shape):
    """Normal numbers, of either sign."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def positive(*shape):
    """Numbers between 0.1 and 1.1."""
    return torch.rand(shape, generator=torch.Generator().manual_seed(sum(shape))) + 0.1


def integers(*shape, dtype=torch.int64):
    """Integers from -5 to 5, of which some are equal."""
    return torch.randint(-5, 6, shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=dtype)


def indices(count, *shape):
    """Integers from 0 to `count` - 1."""
    return torch.randint(0, count, shape, generator=torch.Generator().manual_seed(sum(shape)))


def booleans(*shape):
    return f32(*shape) > 0


def special(*shape, nan=True):
    """Normal numbers, infinities, zeros of either sign, halves and NaN among them."""
    values = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, 0.5, 1.5, -2.5, 1e-30][0 if nan else 1 :])
    x = f32(*shape).flatten()
    x[: min(len(values), len(x))] = values[: len(x)]
    return x.reshape(shape)


def seeded(module):
    """`module` with random parameters and statistics of batch norms, always the same."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            if tensor.dtype == torch.float32:
                tensor.normal_(generator=generator)
                tensor.mul_(0.5)
                if name.endswith("running_var"):
                    tensor.abs_().add_(0.5)
    return module
