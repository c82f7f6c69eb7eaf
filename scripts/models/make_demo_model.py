"""Train, prune and export the demo's network; a maintainer's job that needs torch, scikit-learn and onnxruntime.

    python scripts/models/make_demo_model.py

A residual network learns scikit-learn's handwritten digits, `torch.nn.utils.prune` takes 90% of the weights of
every convolution but the first in a few steps, with training between them under the masks. The dense network, its
weights rounded, and the pruned one are written to ``tvm_sparse/cli/data`` as ONNX together with the held-out images.
Three minutes on two cores; the same machine and versions give the same files.
"""

import argparse
import copy
import lzma
import math
import zipfile
from collections import OrderedDict
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from torch import nn
from torch.nn.functional import cross_entropy, pad, relu
from torch.nn.utils import parametrize, prune

from benchmarks.onnx_graph import GraphBuilder
from tvm_sparse.cli import demo_data

SEED = 0
TEST_SHARE = 0.25
BATCH = 64
SHIFT = 3  # training images move by up to this many of their 32 pixels
DENSE_EPOCHS, STEP_EPOCHS, FINE_TUNE_EPOCHS = 12, 2, 10
DENSITIES = (0.5, 0.25, 0.15, 0.1)  # of each pruned convolution after each step
# The dense network learns on with convolution weights of 2**BITS values, so that its file is small.
BITS, STEP_SIGMAS, ROUNDED_EPOCHS = 1, 1.6, 20
# Binary digits of the convolutions' weights, and of all other numbers, of float32's 24.
FRACTION, OTHER_FRACTION = 5, 9
# For xz: float32 values, of which most bytes tell little of the next.
PACKED = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 0, "lp": 2, "pb": 1}]


class ConvBN(nn.Sequential):
    """3x3 convolution and batch norm: (N, C, H, W) to (N, K, H / stride, W / stride)."""

    def __init__(self, c: int, k: int, stride: int = 1):
        conv = nn.Conv2d(c, k, 3, stride, padding=1, bias=False)
        super().__init__(OrderedDict(conv=conv, bn=nn.BatchNorm2d(k)))


class Block(nn.Module):
    """Two convolutions and a shortcut around them."""

    def __init__(self, c: int):
        super().__init__()
        self.first, self.second = ConvBN(c, c), ConvBN(c, c)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return relu(x + self.second(relu(self.first(x))))


class DigitsNet(nn.Module):
    """A block of 32 channels at 32x32 pixels, one of 48 at 16x16: (N, 1, 32, 32) to logits (N, 10); 74,000 weights."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.block1 = ConvBN(1, 32), Block(32)
        self.down, self.block2 = ConvBN(32, 48, stride=2), Block(48)
        self.classifier = nn.Linear(48, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.block1(relu(self.stem(x)))
        x = self.block2(relu(self.down(x)))
        return self.classifier(x.mean((2, 3)))


def convolutions(net: nn.Module) -> list[nn.Conv2d]:
    """The convolutions of `net`, the first one first."""
    return [module for module in net.modules() if isinstance(module, nn.Conv2d)]


def train(net: nn.Module, x: torch.Tensor, y: torch.Tensor, epochs: int, rate: float) -> None:
    """Train in place on `x` (N, 1, 32, 32) and `y` (N,), the learning rate falling from `rate` to 0."""
    optimizer = torch.optim.SGD(net.parameters(), lr=rate, momentum=0.9, nesterov=True, weight_decay=5e-4)
    steps = epochs * (len(x) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps, pct_start=0.2)
    net.train()
    for _ in range(epochs):
        # Those that do not fill a batch are left out.
        for batch in torch.randperm(len(x)).split(BATCH)[: len(x) // BATCH]:
            loss = cross_entropy(net(shifted(x[batch])), y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()


def shifted(x: torch.Tensor) -> torch.Tensor:
    """Each image moved by its own random offset, zeros moving in."""
    size = x.shape[-1]
    padded = pad(x, [SHIFT] * 4)
    corners = torch.randint(0, 2 * SHIFT + 1, (len(x), 2)).tolist()
    return torch.stack([image[:, i : i + size, j : j + size] for image, (i, j) in zip(padded, corners, strict=True)])


def prune_to(net: nn.Module, density: float) -> None:
    """Mask the smallest weights of every convolution but the first, on top of the masks that are there."""
    for conv in convolutions(net)[1:]:
        alive = int((conv.weight != 0).sum())
        prune.l1_unstructured(conv, "weight", amount=alive - round(density * conv.weight.numel()))


def prune_gradually(net: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    """Prune and train in turns, then fine-tune and make the zeros permanent."""
    for density in DENSITIES:
        prune_to(net, density)
        train(net, x, y, STEP_EPOCHS, rate=0.03)
    train(net, x, y, FINE_TUNE_EPOCHS, rate=0.05)
    for conv in convolutions(net)[1:]:
        prune.remove(conv, "weight")


def shorten(net: nn.Module) -> None:
    """Round all numbers to a few binary digits, to keep the file small; zeros stay zeros."""
    for value in net.state_dict().values():
        if value.is_floating_point():
            digits = FRACTION if value.ndim == 4 else OTHER_FRACTION
            fraction, exponent = torch.frexp(value)
            value.copy_(torch.ldexp(torch.round(fraction * 2**digits) / 2**digits, exponent))


class Rounded(nn.Module):
    """A weight on 2**BITS values around zero, none of them zero, that learns as if it were not rounded.

    Gradients pass straight through (Bengio, Leonard and Courville 2013, arXiv:1308.3432). The step is the power of two
    next to that with the least error for a normal distribution.
    """

    def __init__(self, weight: torch.Tensor):
        super().__init__()
        self.step = 2.0 ** round(math.log2(STEP_SIGMAS * weight.std().item()))

    def nearest(self, weight: torch.Tensor) -> torch.Tensor:
        """The value next to each weight; those it returns are left as they are."""
        index = torch.floor(weight / self.step).clamp(-(2 ** (BITS - 1)), 2 ** (BITS - 1) - 1)
        return (index + 0.5) * self.step

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight + (self.nearest(weight) - weight).detach()


def train_rounded(net: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    """Train on with rounded convolution weights, which are then permanent."""
    for conv in convolutions(net):
        parametrize.register_parametrization(conv, "weight", Rounded(conv.weight.detach()))
    train(net, x, y, ROUNDED_EPOCHS, rate=0.02)
    for conv in convolutions(net):
        (rounding,) = conv.parametrizations["weight"]
        parametrize.remove_parametrizations(conv, "weight")
        conv.weight.data = rounding.nearest(conv.weight.data)


def to_onnx(net: DigitsNet, name: str) -> onnx.ModelProto:
    """The network for a batch of 1, its batch norms kept as nodes."""
    graph = GraphBuilder(name, (1, 1, demo_data.LARGE, demo_data.LARGE))

    def conv_bn(name: str, x: str) -> str:
        module = net.get_submodule(name)
        # A masked negative weight is -0.0: plus 0 it is 0.0, without a sign to store.
        weight = module.conv.weight.detach().numpy() + np.float32(0)
        x = graph.conv(f"{name}.conv", x, weight, stride=module.conv.stride[0], padding=1)
        return graph.batch_norm(f"{name}.bn", x, {key: value.numpy() for key, value in module.bn.state_dict().items()})

    def block(name: str, x: str) -> str:
        y = graph.relu(f"{name}.first.relu", conv_bn(f"{name}.first", x))
        return graph.relu(f"{name}.relu", graph.add(f"{name}.add", x, conv_bn(f"{name}.second", y)))

    x = block("block1", graph.relu("stem.relu", conv_bn("stem", "x")))
    x = block("block2", graph.relu("down.relu", conv_bn("down", x)))
    weight, bias = (value.detach().numpy() for value in net.classifier.parameters())
    x = graph.linear("classifier", graph.global_average_pool("pool", x), weight, bias)
    return graph.model(x, (1, 10), "logits")


def check(net: nn.Module, model: bytes, x: torch.Tensor) -> float:
    """Largest difference between torch's logits and ONNX Runtime's; ValueError where it is more than rounding."""
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    ours = np.concatenate([session.run(["logits"], {"x": image[None]})[0] for image in x.numpy()])
    with torch.no_grad():
        difference = float(np.abs(ours - net.eval()(x).numpy()).max())
    if difference > 1e-3:
        raise ValueError(f"logits differ from torch's by {difference:.3g}")
    return difference


def save_test(path: Path, **arrays: np.ndarray) -> None:
    """An .npz file like `numpy.savez_compressed`'s, a tenth smaller: `numpy.load` reads what `zipfile` can."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w") as file:
                np.lib.format.write_array(file, array)


def report(label: str, net: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    """Print the share of right answers."""
    with torch.no_grad():
        right = (net.eval()(x).argmax(1) == y).double().mean().item()
    print(f"accuracy, {label:24}{right:.4f}", flush=True)


def main() -> None:
    """Make the three files and print what came out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=demo_data.DATA, help="folder (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="torch's threads (default: %(default)s)")
    arguments = parser.parse_args()
    # Imported where needed, so that --help asks for nothing else.
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    torch.manual_seed(SEED)
    torch.set_num_threads(arguments.threads)
    torch.use_deterministic_algorithms(True)

    digits = load_digits()
    images, labels = digits.images.astype(np.uint8), digits.target.astype(np.uint8)
    split = train_test_split(images, labels, test_size=TEST_SHARE, random_state=SEED, stratify=labels)
    x, x_test = (torch.from_numpy(demo_data.preprocess(part)) for part in split[:2])
    y, y_test = (torch.from_numpy(part.astype(np.int64)) for part in split[2:])
    dense = DigitsNet()
    train(dense, x, y, DENSE_EPOCHS, rate=0.1)
    report("dense", dense, x_test, y_test)
    at_once, pruned = copy.deepcopy(dense), copy.deepcopy(dense)
    prune_to(at_once, DENSITIES[-1])
    report("pruned, not fine-tuned", at_once, x_test, y_test)
    prune_gradually(pruned, x, y)
    shorten(pruned)
    report("pruned and fine-tuned", pruned, x_test, y_test)
    for conv in convolutions(pruned):
        print(f"  {tuple(conv.weight.shape)}: density {(conv.weight != 0).double().mean().item():.4f}")
    train_rounded(dense, x, y)
    shorten(dense)
    report("dense, rounded", dense, x_test, y_test)

    arguments.output.mkdir(parents=True, exist_ok=True)
    save_test(arguments.output / "digits_test.npz", images=split[1], labels=split[3])
    for which, net in (("dense", dense), ("pruned", pruned)):
        path = arguments.output / f"digits_{which}.onnx.xz"
        model = to_onnx(net, f"digits_{which}").SerializeToString()
        path.write_bytes(lzma.compress(model, filters=PACKED))
        difference = check(net, model, x_test)
        print(f"{path.name:20}{path.stat().st_size:>10} bytes, within {difference:.1e} of torch in ONNX Runtime")


if __name__ == "__main__":
    main()
