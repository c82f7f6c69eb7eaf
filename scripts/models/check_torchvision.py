"""Compile torchvision's models for a CPU without a tuning log, and compare each with torch.

    python scripts/models/check_torchvision.py
    python scripts/models/check_torchvision.py resnet18 swin_t

Weights are random; batch norms have the statistics that random images lead to, so that outputs depend on the input at
any depth. Prints a line for each model: what came of it, the largest error and that of torch in float32, both against
torch in float64, the number of layers that the compiler replaces, and the times that compiling and a call took. Ends
with 1 where a model is not as torch.
"""

import argparse
import copy
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

import tvm_sparse

# Name -> height and width of its image: as small as the model allows, to be quick.
IMAGES = {
    "alexnet": 96,
    "convnext_tiny": 64,
    "deeplabv3_mobilenet_v3_large": 64,
    "densenet121": 64,
    "efficientnet_b0": 64,
    "googlenet": 64,
    "inception_v3": 96,
    "lraspp_mobilenet_v3_large": 64,
    "mnasnet0_5": 64,
    "mobilenet_v2": 64,
    "mobilenet_v3_small": 64,
    "regnet_y_400mf": 64,
    "resnet18": 64,
    "resnext50_32x4d": 64,
    "shufflenet_v2_x0_5": 64,
    "squeezenet1_1": 64,
    "swin_t": 64,
    "vgg11_bn": 64,
    "vit_b_16": 224,
}
# Of what outputs differ by between two inputs; where torch rounds to more than half of it, so may we.
TOLERANCE = 1e-4


def torchvision_models() -> Any:
    """The module `torchvision.models`.

    PyPI has torchvision for torch with CUDA only. Its operators do not load into torch without, and its import fails
    where they are not declared; its models use none of them.
    """
    import importlib.util

    found = importlib.util.find_spec("torchvision")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("torchvision is not installed; run: pip install 'tvm-sparse[test]'")
    if not hasattr(torch.ops.torchvision, "nms"):
        try:
            torch.ops.load_library(Path(found.origin).with_name("_C.so"))
        except OSError:
            for name in ("nms", "qnms"):
                declaration = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
                torch.library.define(f"torchvision::{name}", declaration)
    import torchvision.models

    return torchvision.models


def random_model(name: str, image: int, seed: int = 0) -> nn.Module:
    """The model `name` of torchvision with random weights, in evaluation mode; its batch norms know random images."""
    models = torchvision_models()
    torch.manual_seed(seed)
    options: dict[str, Any] = {"init_weights": True} if name in ("googlenet", "inception_v3") else {}
    if name in models.segmentation.__dict__:
        options["weights_backbone"] = None
    return set_up(models.get_model(name, weights=None, **options), image)


def set_up(model: nn.Module, image: int) -> nn.Module:
    """A `model` in evaluation mode, whose outputs depend on such images."""
    model.eval()
    set_statistics(model, torch.randn(8, 3, image, image))
    for module in model.modules():
        if isinstance(module, nn.Linear) and not module.weight.any():
            # Heads of vision transformers begin as zeros, which would hide all before them.
            nn.init.normal_(module.weight, std=module.in_features**-0.5)
    return model


def set_statistics(model: nn.Module, images: torch.Tensor) -> None:
    """Give the batch norms of a `model` in evaluation mode the statistics of `images`."""
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        # The plain mean over all batches, of which there is one.
        norm.momentum = None
        norm.train()
    with torch.no_grad():
        model(images)
    for norm, momentum in zip(norms, momenta, strict=True):
        # Those of auxiliary classifiers have seen nothing, and are for training only.
        norm.momentum = momentum
        norm.eval()


def difference(found: Any, want: Any, other: Any) -> float:
    """Largest error of any output, as a share of what it differs by between two inputs."""
    shares = []
    for got, expected, second in zip(tree_leaves(found), tree_leaves(want), tree_leaves(other), strict=True):
        error = (torch.as_tensor(got) - expected).abs().max()
        shares.append(float(error / (expected - second).abs().max()))
    return max(shares)


def check(model: nn.Module, image: int, target: dict[str, Any] | None = None) -> tuple[bool, str]:
    """Whether the `model` compiled for `target` does what torch does, and the line that says so."""
    x, other = torch.randn(2, 1, 3, image, image)
    start = time.perf_counter()
    try:
        compiled = tvm_sparse.compile(model, x, target=target)
    except tvm_sparse.TvmSparseError as error:
        return False, f"refused   {error}"
    compile_s = time.perf_counter() - start
    # The first call links and loads the kernels.
    found = compiled(x.numpy())
    start = time.perf_counter()
    compiled(x.numpy())
    call_ms = (time.perf_counter() - start) * 1e3
    with torch.no_grad():
        torchs, other = model(x), model(other)
        want = copy.deepcopy(model).double()(x.double())
        error, usual = difference(found, want, other), difference(torchs, want, other)
    agrees = error <= max(TOLERANCE, 2 * usual)
    text = f"{'agrees' if agrees else 'differs':10}error {error:.1e}, torch's {usual:.1e}"
    times = f"compiled in {compile_s:.1f} s, a call takes {call_ms:.1f} ms"
    return agrees, f"{text}, {len(compiled.report()):3} layers, {times}"


def main() -> int:
    """Check the models of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"default: {' '.join(IMAGES)}")
    arguments = parser.parse_args()
    all_agree = True
    for name in arguments.models or IMAGES:
        image = IMAGES.get(name, 64)
        agrees, line = check(random_model(name, image), image)
        print(f"{name:29}{image:4}  {line}", flush=True)
        all_agree &= agrees
    return 0 if all_agree else 1


if __name__ == "__main__":
    sys.exit(main())
