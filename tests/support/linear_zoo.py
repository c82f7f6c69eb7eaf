"""Small models whose layers are linear, as each front end writes them; weights are sparse unless it says otherwise."""

import numpy as np
import torch
from torch import nn
from zoo import onnx_model


def linear(inputs=12, outputs=8, density=0.3, seed=0, **options):
    """An `nn.Linear` with this share of non-zeros."""
    layer, generator = nn.Linear(inputs, outputs, **options), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
        zeros = torch.randperm(layer.weight.numel(), generator=generator)[round(density * layer.weight.numel()) :]
        layer.weight.view(-1)[zeros] = 0
    return layer


def batch_norm(channels=8):
    """A batch norm with statistics that matter."""
    norm, generator = nn.BatchNorm1d(channels), torch.Generator().manual_seed(1)
    for tensor in (norm.weight.data, norm.bias.data, norm.running_mean):
        tensor.copy_(torch.randn(channels, generator=generator))
    norm.running_var.uniform_(0.5, 2, generator=generator)
    return norm


class Skip(nn.Module):
    """``relu(linear(x) + x)``."""

    def __init__(self):
        super().__init__()
        self.fc = linear(12, 12)

    def forward(self, x):
        return torch.relu(self.fc(x) + x)


class Parameter(nn.Module):
    """``x @ weight``, which is stored (C, K)."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(linear().weight.T.detach().clone().contiguous())

    def forward(self, x):
        return x @ self.weight


class Attention(nn.Module):
    """A product of two activations between linear layers."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (linear(12, 8, seed=seed) for seed in range(3))

    def forward(self, x):
        return torch.softmax(self.q(x) @ self.k(x).transpose(1, 2), -1) @ self.v(x)


class TwoOutputs(nn.Module):
    """The first layer's raw result is an output too."""

    def __init__(self):
        super().__init__()
        self.first, self.second = linear(), linear(8, 5)

    def forward(self, x):
        y = self.first(x)
        return y, self.second(torch.relu(y))


class Classifier(nn.Sequential):
    """The end of VGG16 in small: maps flattened, three linear layers."""

    def __init__(self):
        super().__init__(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            linear(8 * 16, 64, 0.1),
            nn.ReLU(),
            nn.Dropout(),
            linear(64, 64, 0.1, seed=1),
            nn.ReLU(),
            nn.Dropout(),
            linear(64, 10, 0.2, seed=2),
        )
        self.eval()


SHARED = linear(8, 8)
X = (3, 12)
# Name -> (module, shape of its input, keys of the specs of its layers by name).
TORCH = {
    "plain": (nn.Sequential(linear()), X, {"0": "n3c12h1w1-k8r1s1-st1x1-p0.0.0.0-d1x1-g1-b"}),
    "no_bias": (nn.Sequential(linear(bias=False)), X, {"0": "n3c12h1w1-k8r1s1-st1x1-p0.0.0.0-d1x1-g1"}),
    "relu": (nn.Sequential(linear(), nn.ReLU()), X, {"0": "n3c12h1w1-k8r1s1-st1x1-p0.0.0.0-d1x1-g1-br"}),
    "batch_norm": (
        nn.Sequential(linear(), batch_norm(), nn.ReLU()),
        X,
        {"0": "n3c12h1w1-k8r1s1-st1x1-p0.0.0.0-d1x1-g1-br"},
    ),
    "one_row": (nn.Sequential(linear()), (12,), {"0": "n1c12h1w1-k8r1s1-st1x1-p0.0.0.0-d1x1-g1-b"}),
    "one_channel": (
        nn.Sequential(linear(12, 1, 0.4), nn.ReLU()),
        X,
        {"0": "n3c12h1w1-k1r1s1-st1x1-p0.0.0.0-d1x1-g1-br"},
    ),
    "three_axes": (
        nn.Sequential(linear(), nn.ReLU()),
        (2, 5, 12),
        {"0": "n10c12h1w1-k8r1s1-st1x1-p0.0.0.0-d1x1-g1-br"},
    ),
    "four_axes": (
        nn.Sequential(linear(bias=False)),
        (2, 3, 4, 12),
        {"0": "n24c12h1w1-k8r1s1-st1x1-p0.0.0.0-d1x1-g1"},
    ),
    "skip": (Skip(), X, {"fc": "n3c12h1w1-k12r1s1-st1x1-p0.0.0.0-d1x1-g1-bar"}),
    "skip_three_axes": (Skip(), (2, 5, 12), {"fc": "n10c12h1w1-k12r1s1-st1x1-p0.0.0.0-d1x1-g1-bar"}),
    "parameter": (Parameter(), X, {"weight": "n3c12h1w1-k8r1s1-st1x1-p0.0.0.0-d1x1-g1"}),
    "attention": (
        Attention(),
        (2, 5, 12),
        dict.fromkeys("qkv", "n10c12h1w1-k8r1s1-st1x1-p0.0.0.0-d1x1-g1-b"),
    ),
    "shared": (
        nn.Sequential(SHARED, nn.ReLU(), SHARED, nn.ReLU()),
        (3, 8),
        dict.fromkeys(("0", "2"), "n3c8h1w1-k8r1s1-st1x1-p0.0.0.0-d1x1-g1-br"),
    ),
    "two_outputs": (
        TwoOutputs(),
        X,
        {
            "first": "n3c12h1w1-k8r1s1-st1x1-p0.0.0.0-d1x1-g1-b",
            "second": "n3c8h1w1-k5r1s1-st1x1-p0.0.0.0-d1x1-g1-b",
        },
    ),
    "dense": (nn.Sequential(linear(density=1.0), nn.ReLU(), linear(8, 4, 0.6)), X, {}),
    "classifier": (
        Classifier(),
        (2, 3, 8, 8),
        {
            "0": "n2c3h8w8-k8r3s3-st1x1-p1.1.1.1-d1x1-g1-br",
            "4": "n2c128h1w1-k64r1s1-st1x1-p0.0.0.0-d1x1-g1-br",
            "7": "n2c64h1w1-k64r1s1-st1x1-p0.0.0.0-d1x1-g1-br",
            "10": "n2c64h1w1-k10r1s1-st1x1-p0.0.0.0-d1x1-g1-b",
        },
    ),
}
for _module, *_ in TORCH.values():
    _module.eval()

W = linear().weight.detach().numpy()
B = linear().bias.detach().numpy()


def _gemm(x=X, out=(3, 8), inputs=("x", "w", "b"), weights=None, **attributes):
    weights = {"w": W if attributes.get("transB") else W.T.copy(), "b": B} if weights is None else weights
    return onnx_model([("Gemm", list(inputs), ["y"], attributes)], weights, {"x": x}, {"y": out})


def _matmul(x, out, bias, *steps):
    """MatMul and Add, which gives ``y``, or ``a`` where other steps follow."""
    nodes = [("MatMul", ["x", "w"], ["m"], {}), ("Add", ["b", "m"], ["a" if steps else "y"], {}), *steps]
    return onnx_model(nodes, {"w": W.T.copy(), "b": bias}, {"x": x}, {"y": out})


# Name -> (ONNX model, the only layer's name and the key of its spec).
ONNX = {
    "gemm": (_gemm(), ("Gemm_0", "n3c12h1w1-k8r1s1-st1x1-p0.0.0.0-d1x1-g1-b")),
    "gemm_transposed": (_gemm(transB=1), ("Gemm_0", "n3c12h1w1-k8r1s1-st1x1-p0.0.0.0-d1x1-g1-b")),
    "gemm_alpha_beta": (
        _gemm(transB=1, alpha=0.5, beta=-2.0),
        ("Gemm_0", "n3c12h1w1-k8r1s1-st1x1-p0.0.0.0-d1x1-g1-b"),
    ),
    "gemm_no_bias": (
        _gemm(inputs=("x", "w"), weights={"w": W}, transB=1),
        ("Gemm_0", "n3c12h1w1-k8r1s1-st1x1-p0.0.0.0-d1x1-g1"),
    ),
    "gemm_one_bias": (
        _gemm(weights={"w": W.T.copy(), "b": np.float32([0.5])}),
        ("Gemm_0", "n3c12h1w1-k8r1s1-st1x1-p0.0.0.0-d1x1-g1-b"),
    ),
    # A bias of a value for each element is no bias of ours, and stays an addition.
    "gemm_full_bias": (
        _gemm(weights={"w": W.T.copy(), "b": np.arange(24, dtype=np.float32).reshape(3, 8)}),
        ("Gemm_0", "n3c12h1w1-k8r1s1-st1x1-p0.0.0.0-d1x1-g1"),
    ),
    "gemm_transposed_input": (
        _gemm(x=(12, 3), transA=1),
        ("Gemm_0", "n3c12h1w1-k8r1s1-st1x1-p0.0.0.0-d1x1-g1-b"),
    ),
    "scaled": (
        onnx_model(
            [("Mul", ["half", "x"], ["t"], {}), ("Gemm", ["t", "w", "b"], ["y"], {"transB": 1})],
            {"w": W, "b": B, "half": np.float32(0.5)},
            {"x": X},
            {"y": (3, 8)},
        ),
        ("Gemm_1", "n3c12h1w1-k8r1s1-st1x1-p0.0.0.0-d1x1-g1-b"),
    ),
    "matmul": (_matmul(X, (3, 8), B), ("MatMul_0", "n3c12h1w1-k8r1s1-st1x1-p0.0.0.0-d1x1-g1-b")),
    "matmul_relu": (
        _matmul((2, 5, 12), (2, 5, 8), B, ("Relu", ["a"], ["y"], {})),
        ("MatMul_0", "n10c12h1w1-k8r1s1-st1x1-p0.0.0.0-d1x1-g1-br"),
    ),
    "matmul_bias_of_axes": (
        _matmul((2, 5, 12), (2, 5, 8), B.reshape(1, 1, 8)),
        ("MatMul_0", "n10c12h1w1-k8r1s1-st1x1-p0.0.0.0-d1x1-g1-b"),
    ),
    "transposed_initializer": (
        onnx_model(
            [("Transpose", ["fc.weight"], ["t"], {"perm": [1, 0]}), ("MatMul", ["x", "t"], ["y"], {})],
            {"fc.weight": W},
            {"x": X},
            {"y": (3, 8)},
        ),
        ("fc", "n3c12h1w1-k8r1s1-st1x1-p0.0.0.0-d1x1-g1"),
    ),
    "masked": (
        onnx_model(
            [("Mul", ["w", "mask"], ["wm"], {}), ("Gemm", ["x", "wm"], ["y"], {"transB": 1})],
            {"w": linear(density=1.0).weight.detach().numpy(), "mask": (W != 0).astype(np.float32)},
            {"x": X},
            {"y": (3, 8)},
        ),
        ("Gemm_1", "n3c12h1w1-k8r1s1-st1x1-p0.0.0.0-d1x1-g1"),
    ),
}
