"""Pruned networks of torchvision and timm, and U-Net."""

import copy
import math
from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.models.unet import UNet
from tvm_sparse.conv.structure import Structure
from tvm_sparse.conv.structured_mask import structured_mask
from tvm_sparse.prune.layers import as_convolution, as_weight, groups_of, is_prunable, is_transposed

# A "pattern" of zeros of `network`: filters that are gone, and with them the channels that they made.
NARROW = "narrow"
# Zeros at any places, more of them in larger layers.
ERK = "erk"
# What widths of VGG and ResNet are multiples of, and what narrower ones are made of: TF32 wants four channels.
WIDTH, STEP = 64, 4
# Networks of films, of so many frames and, unless asked for, of this height and width; images are `IMAGE` pixels.
FILMS, FRAMES, FRAME, IMAGE = ("r3d_18", "mc3_18", "r2plus1d_18"), 16, 112, 224


def network(name: str, density: float, seed: int = 0, pattern: str = "unstructured") -> Any:
    """A network of torchvision, or of timm, in evaluation mode, with its convolutions pruned by magnitude.

    Batch norms behind convolutions are folded where torch.fx can trace the network.

    The first convolution and depthwise ones stay dense; of a linear layer other than the last, which makes the classes,
    the same share is pruned. Weights are drawn so that activations stay of order 1 at any depth. `pattern` is that of
    the zeros, as `Structure.named` knows it; UsageError where it does not. ``erk`` has them at any places, at densities
    by `erk_densities`. ``narrow`` is a dense network with about that share of all channels: what is left of a VGG or a
    ResNet where whole filters are pruned.
    """
    torch.manual_seed(seed)
    folded = _folded(_module(name).eval())
    if pattern == NARROW:
        _narrow(folded, density)
        density, pattern = 1.0, "unstructured"
    pruned = [each for each in _layers(folded) if _is_pruned(folded, each)]
    found = [density] * len(pruned)
    if pattern == ERK:
        found, pattern = erk_densities([each.weight.shape for each in pruned], density), "unstructured"
    densities = dict(zip(pruned, found, strict=True))
    for each in _layers(folded):
        _draw(each, densities.get(each, 1.0), Structure.named(pattern))
    return folded


def erk_densities(shapes: Sequence[Sequence[int]], density: float) -> list[float]:
    """Densities of layers with weights of these shapes, which together have that share of their weights.

    Each is in proportion to the sum of a shape over its product, and 1 at most (Evci et al. 2020, section 3).
    """
    sizes, full = [math.prod(each) for each in shapes], set[int]()
    while True:
        rest = [index for index in range(len(shapes)) if index not in full]
        left = density * sum(sizes) - sum(sizes[index] for index in full)
        scale = left / sum(sum(shapes[index]) for index in rest) if rest else 0.0
        found = {index: scale * sum(shapes[index]) / sizes[index] for index in rest}
        more = {index for index, each in found.items() if each > 1}
        if not more:
            return [found.get(index, 1.0) for index in range(len(shapes))]
        full |= more


def images(name: str, batch: int, size: int | None = None) -> Any:
    """Random images (batch, 3, size, size), of films (batch, 3, frames, size, size); the same each time."""
    frames, usual = ((FRAMES,), FRAME) if name in FILMS else ((), IMAGE)
    size = size or usual
    return torch.randn(batch, 3, *frames, size, size, generator=torch.Generator().manual_seed(1))


def _module(name: str) -> Any:
    if name == "unet":
        return UNet()
    import torchvision

    if name in torchvision.models.list_models():
        extra = {"init_weights": False, "aux_logits": False} if name == "googlenet" else {}
        return torchvision.models.get_model(name, weights=None, **extra)
    import timm

    # Branches that are there for training alone are merged, as in what people run.
    return timm.utils.reparameterize_model(timm.create_model(name, pretrained=False))


def _folded(module: Any) -> Any:
    from torch.fx.experimental.optimization import fuse

    for each in module.modules():
        if isinstance(each, torch.nn.Conv3d):
            # It folds into this very class alone, not into those that torchvision derives from it.
            each.__class__ = torch.nn.Conv3d
    try:
        return fuse(module)
    except torch.fx.proxy.TraceError:
        return module


def _layers(module: Any) -> list[Any]:
    """Convolutions and linear layers, in the order of the model."""
    return [each for each in module.modules() if is_prunable(each)]


def _is_pruned(module: Any, layer: Any) -> bool:
    layers = _layers(module)
    ends = (layers[0], layers[-1])
    return all(layer is not end for end in ends) and groups_of(layer) == 1


def _narrow(module: Any, share: float) -> None:
    """`share` of the channels between all layers; images and classes stay."""
    layers, left = _layers(module), STEP * max(1, round(WIDTH * share / STEP))
    for layer in layers:
        outputs, inputs, *taps = layer.weight.shape
        outputs = outputs if layer is layers[-1] else outputs // WIDTH * left
        inputs = inputs if layer is layers[0] else inputs // WIDTH * left
        layer.weight = torch.nn.Parameter(layer.weight.new_empty(outputs, inputs, *taps))
        layer.bias = torch.nn.Parameter(layer.bias[:outputs])


def _draw(layer: Any, density: float, structure: Structure) -> None:
    """Normal values, the largest of them kept, and a scale that keeps the energy of what passes a ReLU (He, 2015)."""
    with torch.no_grad():
        weight = layer.weight.normal_()
        array = as_convolution(layer, weight)
        # Of the outputs of a transposed convolution each gets a share of the taps.
        outputs = len(array) * (math.prod(layer.stride) if is_transposed(layer) else 1)
        if density < 1:
            groups = groups_of(layer)
            mask = structured_mask(abs(array), structure.fitted(len(array) // groups), 1 - density, groups)
            weight *= torch.from_numpy(as_weight(layer, mask))
        weight *= (2 * outputs / weight.square().sum()).sqrt()


def reference(module: Any, x: Any) -> Any:
    """The output in float64."""
    with torch.no_grad():
        return copy.deepcopy(module).double()(x.double())
