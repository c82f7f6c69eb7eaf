"""Small models that between them use everything a convolution can meet, and helpers that run them."""

import warnings

import torch
from onnx_zoo import _BN, ONNX, UNOPTIMISED, X, _random, inputs_of, onnx_model, run_onnx, run_relax  # noqa: F401
from torch import nn


def run_torch(module, *arrays):
    """Outputs of a torch module, as a list of arrays."""
    with torch.no_grad():
        outputs = module(*map(torch.from_numpy, arrays))
    return [o.numpy() for o in ([outputs] if isinstance(outputs, torch.Tensor) else outputs)]


class Chain(nn.Sequential):
    """Layers one after the other, batch norms with statistics that matter, half of each weight zero."""

    def __init__(self, *layers):
        super().__init__(*layers)
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for module in self.modules():
                if isinstance(module, nn.BatchNorm2d):
                    for tensor in (module.weight, module.bias, module.running_mean):
                        tensor.copy_(torch.randn(tensor.shape, generator=generator))
                    module.running_var.uniform_(0.5, 2, generator=generator)
                elif isinstance(module, nn.Conv2d):
                    module.weight.copy_(torch.randn(module.weight.shape, generator=generator))
                    module.weight *= torch.rand(module.weight.shape, generator=generator) < 0.5
                    if module.bias is not None:
                        module.bias.copy_(torch.randn(module.bias.shape, generator=generator))
        self.eval()


class Residual(Chain):
    """``relu(layers(x) + shortcut(x))``, the sum in either order and with or without the ReLU."""

    def __init__(self, *layers, shortcut=None, relu=True, swapped=False):
        super().__init__(*layers)
        self.shortcut = shortcut if shortcut is not None else nn.Identity()
        self.relu, self.swapped = relu, swapped
        self.eval()

    def forward(self, x):
        y = x
        for layer in list(self)[:-1]:
            y = layer(y)
        y = self.shortcut(x) + y if self.swapped else y + self.shortcut(x)
        return torch.relu(y) if self.relu else y


class Twice(Chain):
    """The first convolution's raw output is used twice."""

    def forward(self, x):
        y = self[0](x)
        return torch.relu(y) + self[1](y)


class TwoConsumers(Chain):
    """The output of ReLU feeds two convolutions, and both are outputs."""

    def forward(self, x):
        y = torch.relu(self[0](x))
        return self[1](y), self[2](y)


class Doubled(Chain):
    """A convolution's output added to itself."""

    def forward(self, x):
        y = self[0](x)
        return torch.relu(y + y)


class Shared(Chain):
    """One convolution applied twice."""

    def forward(self, x):
        return self[0](torch.relu(self[0](x)))


class InPlace(Chain):
    """Everything in place, as torchvision writes it."""

    def forward(self, x):
        y = nn.functional.dropout(self[1](self[0](x)), training=self.training)
        y += x
        return nn.functional.relu_(y)


class Between(Chain):
    """Pools, a concatenation and elementwise operators between convolutions."""

    def forward(self, x):
        y = nn.functional.max_pool2d(torch.relu(self[0](x)), 3, 2, 1, ceil_mode=True)
        a, b = self[1](y), torch.sigmoid(self[2](y))
        y = torch.cat([a, nn.functional.avg_pool2d(y, 3, 1, 1, count_include_pad=False), b], 1)
        return self[3](torch.clamp(self[4](y * 0.5), -1, 1)).mean((2, 3))


class TwoInputs(Chain):
    """Two inputs, and the second is the residual."""

    def forward(self, x, z):
        return torch.relu(self[0](x) + z)


def conv(c=4, k=4, size=3, **options):
    return nn.Conv2d(c, k, size, padding=options.pop("padding", size // 2), **options)


# Name -> (module, shapes of its inputs).
TORCH = {
    "plain": (Chain(conv()), [X]),
    "no_bias": (Chain(conv(bias=False)), [X]),
    "relu": (Chain(conv(), nn.ReLU()), [X]),
    "batch_norm_after_bias": (Chain(conv(), nn.BatchNorm2d(4), nn.ReLU()), [X]),
    "batch_norm": (Chain(conv(bias=False), nn.BatchNorm2d(4)), [X]),
    "batch_norm_before": (Chain(nn.BatchNorm2d(4), nn.ReLU(), conv()), [X]),
    "depthwise": (Chain(conv(groups=4), nn.BatchNorm2d(4), nn.ReLU(), conv(4, 6, 1)), [X]),
    "grouped": (Chain(conv(k=6, groups=2)), [X]),
    "dilated": (Chain(conv(dilation=2, padding=2), nn.ReLU()), [X]),
    "dilated_unequal": (Chain(conv(dilation=(1, 2), padding=(0, 3), stride=(2, 1))), [X]),
    "dilated_beyond": (Chain(conv(dilation=9, padding=9, bias=True), nn.ReLU()), [X]),
    "dilated_far": (Chain(conv(size=5, dilation=(5, 3), padding=(10, 6), stride=(2, 1), groups=2)), [X]),
    "dilated_into_one": (Chain(conv(dilation=4, padding=3, stride=7)), [X]),
    "stride2": (Chain(conv(stride=2), conv(4, 8, 1, stride=2)), [X]),
    "same_padding_even": (Chain(conv(size=2, padding="same")), [X]),
    "kernel_5x3": (Chain(nn.Conv2d(4, 4, (5, 3), padding=(2, 1))), [X]),
    "relu6": (Chain(conv(), nn.ReLU6()), [X]),
    "batch3": (Chain(conv(), nn.ReLU(), nn.MaxPool2d(2), conv(k=7)), [(3, 4, 9, 9)]),
    "residual": (Residual(conv(), nn.BatchNorm2d(4), nn.ReLU(), conv(), nn.BatchNorm2d(4)), [X]),
    "residual_swapped": (Residual(conv(), nn.ReLU(), conv(), swapped=True), [X]),
    "residual_no_relu": (Residual(conv(), relu=False), [X]),
    "residual_two_convs": (Residual(conv(bias=False), shortcut=conv(size=1)), [X]),
    "used_twice": (Twice(conv(), conv()), [X]),
    "two_consumers": (TwoConsumers(conv(), conv(), conv(size=1)), [X]),
    "doubled": (Doubled(conv()), [X]),
    "shared": (Shared(conv()), [X]),
    "in_place": (InPlace(conv(), nn.BatchNorm2d(4)), [X]),
    "between": (
        Between(conv(k=8), conv(8, 8, 1), conv(8, 8), conv(24, 8), nn.BatchNorm2d(24)),
        [X],
    ),
    "two_inputs": (TwoInputs(conv(bias=False)), [X, X]),
    "classifier": (Chain(conv(k=8, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)), [X]),
}


def export_quietly(module, arrays):
    """`torch.export` without its warning about the attribute that pruning sets."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.export.export(module, tuple(map(torch.from_numpy, arrays)))
