"""Networks of well-known shapes with random pruned weights, for measuring speed without trained ones.

Weights are drawn after He et al. 2015, the smallest of each convolution are set to zero (magnitude pruning, no
structure), and batch norm is given the statistics that such weights lead to, so activations stay of order 1 at any
depth. Convolutions of VGG16 have a bias before their batch norm, like torchvision's vgg16_bn.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx

from benchmarks.onnx_graph import GraphBuilder

CLASSES = 1000


@dataclass(frozen=True)
class Options:
    """What all models have in common.

    `density` is the share of non-zeros in each pruned convolution; the first and depthwise ones stay dense
    unless asked for. `width` multiplies the channels, `image` is the input's height and width in pixels.
    `classifier` is ``small`` (mean over pixels, one fully connected layer), ``none`` (feature maps are the output) or
    ``full`` (the network's own fully connected layers, pruned, where it has several; else ``small``).
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
        self.graph = GraphBuilder(name, (options.batch, 3, options.image, options.image))
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
        options, groups = self.options, x.channels if depthwise else 1
        is_kept = (x is self.input and not options.prune_first) or (depthwise and not options.prune_depthwise)
        weight = self._weight((channels, x.channels // groups, kernel, kernel), 1.0 if is_kept else options.density)
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

    def finish(self, x: Tensor, hidden: tuple[int, ...] = ()) -> onnx.ModelProto:
        """The model with the classifier of the options on top of `x`; a full one has `hidden` layers of these sizes."""
        batch = self.options.batch
        if self.options.classifier == "full" and hidden:
            return self._full_classifier(x, hidden)
        if self.options.classifier == "none":
            return self.graph.model(x.name, (batch, x.channels, x.size, x.size), "features")
        pooled = self.graph.global_average_pool("pool", x.name)
        weight = self._normal((CLASSES, x.channels), math.sqrt(1 / x.channels))
        logits = self.graph.linear("classifier", pooled, weight, np.zeros(CLASSES))
        return self.graph.model(logits, (batch, CLASSES), "logits")

    def _full_classifier(self, x: Tensor, hidden: tuple[int, ...]) -> onnx.ModelProto:
        y, inputs = self.graph.flatten("flatten", x.name), x.channels * x.size**2
        for number, full in enumerate((*hidden, CLASSES), start=1):
            outputs = self.channels(full) if full != CLASSES else full
            weight, bias = self._weight((outputs, inputs), self.options.density), self._normal(outputs, 0.1)
            y, inputs = self.graph.linear(f"classifier.{number}", y, weight, bias), outputs
            if full != CLASSES:
                y = self.graph.relu(f"classifier.{number}.relu", y)
        return self.graph.model(y, (self.options.batch, CLASSES), "logits")

    def _normal(self, shape: int | tuple[int, ...], scale: float = 1.0) -> np.ndarray:
        return self.rng.standard_normal(shape, np.float32) * np.float32(scale)

    def _weight(self, shape: tuple[int, ...], density: float) -> np.ndarray:
        weight = self._normal(shape, math.sqrt(2 / math.prod(shape[1:])))
        zeros = weight.size - round(density * weight.size)
        # Not `normal_weight`: of equal values other ones would stay, and shipped logs hold these weights.
        weight.flat[np.abs(weight).argpartition(min(zeros, weight.size - 1), axis=None)[:zeros]] = 0
        return weight


# Of each convolution of a residual block: name, channels over those of the stage, kernel, and whether it has the stride
# of the block (v1.5).
Layers = tuple[tuple[str, int, int, bool], ...]
BASIC: Layers = (("first", 1, 3, True), ("second", 1, 3, False))
BOTTLENECK: Layers = (("first", 1, 1, False), ("second", 1, 3, True), ("third", 4, 1, False))


def resnet(name: str, blocks: tuple[int, ...], layers: Layers, options: Options) -> onnx.ModelProto:
    """A ResNet of He et al. 2016, with so many blocks in each stage."""
    net = RandomNetwork(name, options)
    x = net.conv("stem", net.input, net.channels(64), 7, stride=2)
    x = net.max_pool("stem.pool", x, 3, padding=1)
    for stage, count in enumerate(blocks):
        k = net.channels(64 * 2**stage)
        for number in range(count):
            block, y, stride = f"stage{stage + 1}.{number + 1}", x, 2 if stage > 0 and number == 0 else 1
            for layer, times, kernel, is_strided in layers:
                is_last = layer == layers[-1][0]
                y = net.conv(f"{block}.{layer}", y, times * k, kernel, stride if is_strided else 1, relu=not is_last)
            if stride > 1 or x.channels != y.channels:
                x = net.conv(f"{block}.shortcut", x, y.channels, 1, stride, relu=False)
            x = net.add(f"{block}.add", y, x)
    return net.finish(x)


def vgg16(options: Options) -> onnx.ModelProto:
    """VGG16 of Simonyan and Zisserman 2015 with batch norm."""
    net = RandomNetwork("vgg16", options)
    x = net.input
    for i, (full, layers) in enumerate(((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)), start=1):
        for j in range(1, layers + 1):
            x = net.conv(f"stage{i}.{j}", x, net.channels(full), 3, bias=True)
        x = net.max_pool(f"stage{i}.pool", x, 2)
    return net.finish(x, hidden=(4096, 4096))


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
    "resnet18": partial(resnet, "resnet18", (2, 2, 2, 2), BASIC),
    "resnet50": partial(resnet, "resnet50", (3, 4, 6, 3), BOTTLENECK),
    "vgg16": vgg16,
    "mobilenet": mobilenet,
}
