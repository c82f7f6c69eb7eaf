"""Networks of well-known shapes with random pruned weights, for measuring speed without trained ones.

Weights are drawn after He et al. 2015, the smallest of each convolution are set to zero (magnitude pruning, no
structure), and batch norm is given the statistics that such weights lead to, so activations stay of order 1 at any
depth. Convolutions of VGG16 have a bias before their batch norm, like torchvision's vgg16_bn.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx

from tvm_sparse.benchmarks.onnx_graph import GraphBuilder

CLASSES = 1000


@dataclass(frozen=True)
class Options:
    """What all models have in common.

    `density` is the share of non-zeros in each pruned convolution; the first and depthwise ones stay dense
    unless asked for. `width` multiplies the channels, `image` is the input's height and width in pixels.
    `classifier` is ``small`` (mean over pixels, one fully connected layer) or ``none`` (feature maps are the output).
    """

    density: float = 0.1
    batch: int = 1
    image: int = 224
    width: float = 1.0
    seed: int = 0
    classifier: str = "small"
    prune_first: bool = False
    prune_depthwise: bool = False


@dataclass(frozen=True)
class Tensor:
    """A tensor of the graph: its name, shape (C, H, W) and the mean of its squares, expected over random weights."""

    name: str
    channels: int
    size: int
    energy: float


class RandomNetwork:
    """Layers with random weights on a growing graph."""

    def __init__(self, name: str, options: Options):
        self.options = options
        self.rng = np.random.default_rng(options.seed)
        shape = (options.batch, 3, options.image, options.image)
        self.graph = GraphBuilder(name, shape)
        self.input = Tensor("x", 3, options.image, 1.0)

    def channels(self, full: int) -> int:
        """`full` times the width, a multiple of 8."""
        return max(8, round(full * self.options.width / 8) * 8)

    def conv(
        self,
        name: str,
        x: Tensor,
        channels: int,
        kernel: int,
        stride: int = 1,
        *,
        depthwise: bool = False,
        bias: bool = False,
        relu: bool = True,
    ) -> Tensor:
        """Convolution that keeps the size (over `stride`), batch norm and, if asked for, ReLU."""
        groups = x.channels if depthwise else 1
        weight = self._weight((channels, x.channels // groups, kernel, kernel), self._density(x, depthwise))
        offset = self._normal(channels, 0.1) if bias else None
        out = self.graph.conv(f"{name}.conv", x.name, weight, offset, stride=stride, padding=kernel // 2, groups=groups)
        variance = x.energy * np.square(weight).sum(axis=(1, 2, 3))
        norm = {
            "weight": self.rng.uniform(0.8, 1.2, channels),
            "bias": self._normal(channels, 0.1),
            "running_mean": 0.1 * np.sqrt(variance) * self._normal(channels) + (0 if offset is None else offset),
            # A filter without weights has no variance; the floor keeps its scale finite.
            "running_var": np.maximum(variance * self.rng.uniform(0.8, 1.2, channels), 1e-3),
        }
        out = self.graph.batch_norm(f"{name}.bn", out, norm)
        y = Tensor(out, channels, (x.size - 1) // stride + 1, 1.0)
        return self.relu(f"{name}.relu", y) if relu else y

    def relu(self, name: str, x: Tensor) -> Tensor:
        """ReLU, which leaves half of the energy."""
        return Tensor(self.graph.relu(name, x.name), x.channels, x.size, x.energy / 2)

    def add(self, name: str, x: Tensor, shortcut: Tensor) -> Tensor:
        """Sum and ReLU, the end of a residual block; most of the shortcut is positive and survives."""
        total = self.graph.relu(f"{name}.relu", self.graph.add(name, x.name, shortcut.name))
        return Tensor(total, x.channels, x.size, x.energy / 2 + shortcut.energy)

    def max_pool(self, name: str, x: Tensor, kernel: int, padding: int = 0) -> Tensor:
        """Maximum with stride 2, which about doubles the energy of ReLU's output."""
        size = (x.size + 2 * padding - kernel) // 2 + 1
        return Tensor(self.graph.max_pool(name, x.name, kernel, 2, padding), x.channels, size, 2 * x.energy)

    def finish(self, x: Tensor) -> onnx.ModelProto:
        """The model with the classifier of the options on top of `x`."""
        batch = self.options.batch
        if self.options.classifier == "none":
            return self.graph.model(x.name, (batch, x.channels, x.size, x.size), "features")
        pooled = self.graph.global_average_pool("pool", x.name)
        weight = self._normal((CLASSES, x.channels), math.sqrt(1 / x.channels))
        logits = self.graph.linear("classifier", pooled, weight, np.zeros(CLASSES))
        return self.graph.model(logits, (batch, CLASSES), "logits")

    def _density(self, x: Tensor, depthwise: bool) -> float:
        options = self.options
        is_kept = (x is self.input and not options.prune_first) or (depthwise and not options.prune_depthwise)
        return 1.0 if is_kept else options.density

    def _normal(self, shape: int | tuple[int, ...], scale: float = 1.0) -> np.ndarray:
        return self.rng.standard_normal(shape, np.float32) * np.float32(scale)

    def _weight(self, shape: tuple[int, int, int, int], density: float) -> np.ndarray:
        weight = self._normal(shape, math.sqrt(2 / math.prod(shape[1:])))
        zeros = weight.size - round(density * weight.size)
        weight.flat[np.abs(weight).argpartition(min(zeros, weight.size - 1), axis=None)[:zeros]] = 0
        return weight


def resnet18(options: Options) -> onnx.ModelProto:
    """ResNet-18 of He et al. 2016."""
    return _resnet("resnet18", options, (2, 2, 2, 2), _basic_block)


def resnet50(options: Options) -> onnx.ModelProto:
    """ResNet-50 of He et al. 2016, the stride in the 3x3 convolutions (v1.5)."""
    return _resnet("resnet50", options, (3, 4, 6, 3), _bottleneck)


def vgg16(options: Options) -> onnx.ModelProto:
    """VGG16 of Simonyan and Zisserman 2015 with batch norm."""
    net = RandomNetwork("vgg16", options)
    x = net.input
    for i, (full, layers) in enumerate(((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)), start=1):
        for j in range(1, layers + 1):
            x = net.conv(f"stage{i}.{j}", x, net.channels(full), 3, bias=True)
        x = net.max_pool(f"stage{i}.pool", x, 2)
    return net.finish(x)


def mobilenet(options: Options) -> onnx.ModelProto:
    """MobileNetV1 of Howard et al. 2017: depthwise 3x3 and 1x1 convolutions in turns."""
    net = RandomNetwork("mobilenet", options)
    x = net.conv("stem", net.input, net.channels(32), 3, stride=2)
    layers = [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1)]
    for i, (full, stride) in enumerate(layers, start=1):
        x = net.conv(f"block{i}.depthwise", x, x.channels, 3, stride, depthwise=True)
        x = net.conv(f"block{i}.pointwise", x, net.channels(full), 1)
    return net.finish(x)


MODELS: dict[str, Callable[[Options], onnx.ModelProto]] = {
    "resnet18": resnet18,
    "resnet50": resnet50,
    "vgg16": vgg16,
    "mobilenet": mobilenet,
}
Block = Callable[[RandomNetwork, str, Tensor, int, int], Tensor]


def _resnet(name: str, options: Options, blocks: tuple[int, ...], block: Block) -> onnx.ModelProto:
    net = RandomNetwork(name, options)
    x = net.conv("stem", net.input, net.channels(64), 7, stride=2)
    x = net.max_pool("stem.pool", x, 3, padding=1)
    for i, count in enumerate(blocks, start=1):
        for j in range(1, count + 1):
            x = block(net, f"stage{i}.{j}", x, 64 * 2 ** (i - 1), 2 if i > 1 and j == 1 else 1)
    return net.finish(x)


def _basic_block(net: RandomNetwork, name: str, x: Tensor, full: int, stride: int) -> Tensor:
    k = net.channels(full)
    y = net.conv(f"{name}.first", x, k, 3, stride)
    y = net.conv(f"{name}.second", y, k, 3, relu=False)
    return net.add(f"{name}.add", y, _shortcut(net, name, x, k, stride))


def _bottleneck(net: RandomNetwork, name: str, x: Tensor, full: int, stride: int) -> Tensor:
    k = net.channels(full)
    y = net.conv(f"{name}.first", x, k, 1)
    y = net.conv(f"{name}.second", y, k, 3, stride)
    y = net.conv(f"{name}.third", y, 4 * k, 1, relu=False)
    return net.add(f"{name}.add", y, _shortcut(net, name, x, 4 * k, stride))


def _shortcut(net: RandomNetwork, name: str, x: Tensor, channels: int, stride: int) -> Tensor:
    if stride == 1 and x.channels == channels:
        return x
    return net.conv(f"{name}.shortcut", x, channels, 1, stride, relu=False)
