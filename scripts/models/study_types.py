"""What half precision costs a trained, pruned network: right answers of the study's network, compiled in each type.

    python scripts/models/study_types.py -o docs/results/study-types.json --target cuda

The network, its digits and its training are those of `study_pruning.py`, with zeros at any places. At each sparsity it
is compiled in float32, float16 and bfloat16, and reads the same hard test images with each.
"""

import argparse
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import study_pruning
import torch
from study_pruning import BATCH, DENSE_RATE, TEST_COPIES, Batches, Options

import tvm_sparse as ts
from tvm_sparse import prune
from tvm_sparse.conv.dtypes import DTYPES
from tvm_sparse.files import publish


def compiled_answers(net: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, target: str) -> dict[str, Any]:
    """By type: the share of right answers, of answers that are float32's of torch, and how many layers each kernel has.

    `x` is a whole number of batches.
    """
    with torch.inference_mode():
        logits = torch.cat([net(part) for part in x.split(BATCH)])
    expected = logits.argmax(1)
    found: dict[str, Any] = {"torch": {"accuracy": _share(expected == y)}}
    for dtype in DTYPES:
        model = ts.compile(net, x[:BATCH], target=target, dtype=dtype)
        own = x.to("cuda" if target == "cuda" else "cpu", getattr(torch, dtype))
        # A copy of each: the model's next output may take its place.
        values = torch.cat([model(part).float().cpu() for part in own.split(BATCH)])
        found[dtype] = {
            "accuracy": _share(values.argmax(1) == y),
            "as_torch": _share(values.argmax(1) == expected),
            "largest_difference": float((values - logits).abs().max()),
            "kernels": dict(Counter(row["schedule"] for row in model.report())),
        }
    return found


def _share(right: torch.Tensor) -> float:
    return round(right.double().mean().item(), 5)


def trained(seed: int, options: Options, wanted: list[float], target: str) -> list[dict[str, Any]]:
    """One seed's points: a sparsity each of those `wanted`, the dense network first."""
    options = replace(options, amounts=tuple(each for each in options.amounts if each <= max(wanted)))
    x, x_test, y, y_test = study_pruning.digits(options.images)
    torch.manual_seed(seed)
    hard = study_pruning.harder(x_test.repeat(TEST_COPIES, 1, 1, 1), torch.Generator().manual_seed(seed))
    whole = len(hard) // BATCH * BATCH
    test = [hard[:whole].contiguous(memory_format=torch.channels_last), y_test.repeat(TEST_COPIES)[:whole]]
    data = Batches(x, y, seed)
    dense = prune.fine_tune(study_pruning.network(options.widths), data, epochs=options.dense_epochs, rate=DENSE_RATE)
    points = [{"amount": 0.0, **compiled_answers(dense, test[0], test[1], target)}]

    # What it learns at a sparsity it learns from the one before, so that all are trained up to the last that is wanted.
    amounts = iter(options.amounts)

    def measure(net: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
        return compiled_answers(net, x, y, target) if next(amounts) in wanted else {}

    of_zeros = study_pruning.trajectory(dense, "unstructured", options, Batches(x, y, 1000 + seed), test, measure)
    return points + [each for each in of_zeros if "torch" in each]


def main() -> None:
    """Train and compile; each seed is written when it is done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=Path("study-types.json"), help="default: %(default)s")
    parser.add_argument("--target", default="cuda", help="default: %(default)s; llvm needs no GPU")
    parser.add_argument("--seeds", type=lambda text: list(map(int, text.split(","))), default=[0, 1, 2])
    parser.add_argument(
        "--amounts", type=lambda text: list(map(float, text.split(","))), help="sparsities (default: all)"
    )
    parser.add_argument("--threads", type=int, default=1, help="torch's threads (default: %(default)s)")
    parser.add_argument("--tiny", action="store_true", help="a few seconds, to see that it works")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    options = Options()
    if given.tiny:
        options = Options(dense_epochs=1, epochs=1, images=300, amounts=(0.5, 0.9), widths=(16, 0, 16, 0, 32, 0))
    found: dict[str, Any] = {}
    for seed in given.seeds:
        found[str(seed)] = trained(seed, options, given.amounts or list(options.amounts), given.target)
        publish.write(given.output, f"{json.dumps(found, indent=1)}\n".encode())
        for point in found[str(seed)]:
            print(seed, point["amount"], *(f"{each} {point[each]['accuracy']:.4f}" for each in DTYPES), flush=True)


if __name__ == "__main__":
    main()
