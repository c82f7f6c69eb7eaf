"""How much accuracy each pattern of zeros costs: a VGG16-shaped network on hard digits, the same training for all.

    python scripts/models/study_pruning.py -o docs/results/study-accuracy --threads 1
    python scripts/models/study_pruning.py -o docs/results/study-accuracy --times times.json   # adds speed, draws
    python scripts/models/study_pruning.py -o docs/results/study-int8 --int8 --patterns dense unstructured channels4

Thirteen 3x3 convolutions with batch norm, an eighth of VGG16's width, but 64 channels from the fifth on: there a
vector of 64 is a whole layer, and tiles of 16 are as many as tiles of 128 at full width. Where a layer is narrower,
vectors and tiles are as long as it is. The data are scikit-learn's digits on 32x32 pixels, each time turned, moved and
covered with noise. A dense network is trained once a seed. From it each pattern goes through all sparsities, from the
lowest to the highest, with the same epochs of fine-tuning at each; so does the dense network, without pruning. All
convolutions but the first are pruned by the same share, by magnitude.

Each finished run is a line of OUTPUT.jsonl, and a restart goes on after the last; where there is no such file, after
those that OUTPUT.json has. From them OUTPUT.json, OUTPUT.md and a plot are written. The file of times is
``{"VGG16, batch 64": {"dense": 560.0, "vector16": {"0.9": 210.0}}}``, microseconds of networks of full width. With
`--int8` every network is quantised too, as `dtype="int8"` does it, from images that it was trained on, and its accuracy
in ONNX Runtime is another of its points.
"""

import argparse
import copy
import io
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import study_report
import torch
from torch import nn
from torch.nn.functional import affine_grid, cross_entropy, grid_sample

from tvm_sparse import prune
from tvm_sparse.cli import demo_data
from tvm_sparse.conv.structure import Structure
from tvm_sparse.frontend.onnx.quantised.quantise import quantise
from tvm_sparse.prune.layers import prunable

# Output channels of the convolutions; 0 is a pooling layer.
WIDTHS = (8, 8, 0, 16, 16, 0, 64, 64, 64, 0, 64, 64, 64, 0, 64, 64, 64, 0)
VECTORS = ("vector4", "vector8", "vector16", "vector16p", "vector32", "vector64")
SLICES = ("slice16c", "slice16cr", "slice16cr+vector4")
PATTERNS = ("dense", "unstructured", "channels4", *VECTORS, *SLICES, "2:4", "filters", "channels")
AMOUNTS = (0.5, 0.7, 0.8, 0.9, 0.95, 0.97)
BATCH = 64
# Largest turn in degrees, largest shift as a share of half the image, and standard deviation of the noise.
TURN, SHIFT, NOISE = 35.0, 0.25, 0.45
TEST_COPIES = 3
# Images from which the ranges of a network's tensors are found.
SAMPLES = 256
DENSE_RATE, RATE = 0.1, 0.03


@dataclass(frozen=True)
class Options:
    """What a study does; `images` limits the digits, and with them the time."""

    seeds: tuple[int, ...] = (0, 1, 2)
    patterns: tuple[str, ...] = PATTERNS
    amounts: tuple[float, ...] = AMOUNTS
    dense_epochs: int = 25
    epochs: int = 3
    images: int = 1797
    widths: tuple[int, ...] = WIDTHS
    int8: bool = False


def network(widths: tuple[int, ...]) -> nn.Sequential:
    """(N, 1, 32, 32) to (N, 10)."""
    layers: list[nn.Module] = []
    channels = 1
    for width in widths:
        if width:
            layers += [nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
            channels = width
        else:
            layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10)).to(
        memory_format=torch.channels_last
    )


def harder(x: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    """Images (N, 1, 32, 32), each turned and moved by its own amount, under noise."""
    uniform = 2 * torch.rand(len(x), 3, generator=random) - 1
    angle = uniform[:, 0] * TURN * torch.pi / 180
    cos, sin, shift = angle.cos(), angle.sin(), uniform[:, 1:] * SHIFT
    maps = torch.stack([cos, -sin, shift[:, 0], sin, cos, shift[:, 1]], 1).reshape(-1, 2, 3)
    moved = grid_sample(x, affine_grid(maps, list(x.shape), align_corners=False), align_corners=False)
    return moved + NOISE * torch.randn(x.shape, generator=random)


class Batches:
    """The training images of an epoch, made harder anew each time; those that fill no batch are left out."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor, seed: int):
        self.x, self.y, self.random = x, y, torch.Generator().manual_seed(seed)

    def __len__(self) -> int:
        return len(self.x) // BATCH

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for chosen in torch.randperm(len(self.x), generator=self.random).split(BATCH)[: len(self)]:
            yield harder(self.x[chosen], self.random).contiguous(memory_format=torch.channels_last), self.y[chosen]


def digits(images: int) -> list[torch.Tensor]:
    """Training and test images (N, 1, 32, 32), then their labels (N,): three quarters and one."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    data = load_digits()
    x = torch.from_numpy(demo_data.preprocess(data.images[:images]))
    y = torch.from_numpy(data.target[:images]).long()
    train, test = train_test_split(torch.arange(len(x)), test_size=0.25, random_state=0, stratify=y)
    return [x[train], x[test], y[train], y[test]]


def measured(net: nn.Module, x: torch.Tensor, y: torch.Tensor) -> dict[str, float]:
    """Share of right answers and mean cross-entropy on images that are hard already."""
    with torch.inference_mode():
        logits = torch.cat([net(part) for part in x.split(BATCH)])
    right = (logits.argmax(1) == y).double().mean().item()
    return {"accuracy": round(right, 5), "loss": round(cross_entropy(logits, y).item(), 5)}


def quantised(net: nn.Module, samples: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> float:
    """The accuracy of `net` in eight bits, with ranges from `samples`."""
    import onnx
    import onnxruntime

    file, names = io.BytesIO(), {"input_names": ["x"], "dynamic_axes": {"x": {0: "n"}}}
    torch.onnx.export(net.eval(), (samples[:1],), file, dynamo=False, opset_version=13, **names)
    feeds = [{"x": part.numpy()} for part in samples.split(BATCH)]
    session = onnxruntime.InferenceSession(quantise("the network", onnx.load_from_string(file.getvalue()), feeds))
    logits = torch.cat([torch.from_numpy(session.run(None, {"x": part.numpy()})[0]) for part in x.split(BATCH)])
    return round((logits.argmax(1) == y).double().mean().item(), 5)


def trajectory(
    net: nn.Module,
    pattern: str,
    options: Options,
    data: Batches,
    test: list[torch.Tensor],
    measure: Callable[..., dict] = measured,
) -> list[dict]:
    """Prune and fine-tune a copy of `net` to one sparsity after the other; what it reaches at each."""
    net, points = copy.deepcopy(net), []
    layers = [each for each in prunable(net).values() if isinstance(each, nn.Conv2d)]

    def prune_to(amount: float) -> None:
        for layer in layers:
            name = Structure.named(pattern).fitted(layer.out_channels).name
            prune.pattern(layer, name, amount)

    for amount in options.amounts if pattern != "2:4" else (0.5,):
        if pattern != "dense":
            prune_to(amount)
        prune.fine_tune(net, data, epochs=options.epochs, rate=RATE)
        zeros = sum(int((each.weight == 0).sum()) for each in layers) / sum(each.weight.numel() for each in layers)
        points.append({"amount": amount, "zeros": round(zeros, 5), **measure(net, *test)})
        if options.int8:
            samples = harder(data.x[:SAMPLES], torch.Generator().manual_seed(0))
            points[-1]["int8"] = quantised(net, samples, *test)
    return points


def known(output: Path) -> list[dict]:
    """The runs that a file of runs has, or else the report beside it."""
    if output.exists():
        return [json.loads(line) for line in output.read_text().splitlines()]
    report = output.with_suffix(".json")
    return study_report.runs_of(json.loads(report.read_text())) if report.exists() else []


def study(output: Path, options: Options) -> list[dict]:
    """All runs, those that `output` has and those that it lacked, which are added to it one by one."""
    runs = known(output)
    done = {(run["seed"], run["pattern"]) for run in runs}
    x, x_test, y, y_test = digits(options.images)
    for seed in options.seeds:
        left = [pattern for pattern in options.patterns if (seed, pattern) not in done]
        if not left:
            continue
        torch.manual_seed(seed)
        hard = harder(x_test.repeat(TEST_COPIES, 1, 1, 1), torch.Generator().manual_seed(seed))
        test = [hard.contiguous(memory_format=torch.channels_last), y_test.repeat(TEST_COPIES)]
        start = time.perf_counter()
        data = Batches(x, y, seed)
        dense = prune.fine_tune(network(options.widths), data, epochs=options.dense_epochs, rate=DENSE_RATE)
        before = measured(dense, *test)
        print(f"seed {seed}: dense {before['accuracy']:.4f}, {time.perf_counter() - start:.0f} s", flush=True)
        for pattern in left:
            start = time.perf_counter()
            points = trajectory(dense, pattern, options, Batches(x, y, 1000 + seed), test)
            seconds = round(time.perf_counter() - start, 1)
            runs.append({"seed": seed, "pattern": pattern, "before": before, "points": points, "seconds": seconds})
            with output.open("a") as file:
                file.write(json.dumps(runs[-1]) + "\n")
            print(f"seed {seed}: {pattern:20}", *(f"{each['accuracy']:.4f}" for each in points), seconds, flush=True)
    return runs


def main() -> None:
    """Run what is left of the study, and report it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=Path("study-accuracy"), help="files without their suffix")
    parser.add_argument("--times", type=Path, help="JSON of measured times, as above")
    parser.add_argument("--threads", type=int, default=1, help="torch's threads (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=3, help="how many (default: %(default)s)")
    parser.add_argument("--patterns", nargs="+", default=PATTERNS, choices=PATTERNS, metavar="P", help="all by default")
    parser.add_argument("--int8", action="store_true", help="also measure each network in eight bits")
    parser.add_argument("--tiny", action="store_true", help="a few seconds, to see that it works")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    options = Options(tuple(range(arguments.seeds)), tuple(arguments.patterns), int8=arguments.int8)
    if arguments.tiny:
        patterns, widths = ("dense", "vector4", "slice16c", "2:4"), (16, 0, 16, 0, 32, 0)
        options = Options(options.seeds, patterns, (0.5, 0.9), 1, 1, 300, widths, options.int8)
    runs = study(arguments.output.with_suffix(".jsonl"), options)
    times = json.loads(arguments.times.read_text()) if arguments.times else {}
    study_report.write(arguments.output, study_report.document(runs, options, times))


if __name__ == "__main__":
    main()
