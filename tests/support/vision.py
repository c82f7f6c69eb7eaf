"""torchvision's models with pruned weights, whose activations keep an order of 1 at any depth."""

import importlib.util

import check_torchvision
import pytest
import torch
from torch import nn

DENSITY = 0.1
# Inception's auxiliary classifier, which is for training only, takes no image smaller than 299x299.
OPTIONS = {"googlenet": {"init_weights": True}, "inception_v3": {"init_weights": True, "aux_logits": False}}
# Width of the linear layers of AlexNet and VGGs, and what they get: their half a gigabyte of weights would be copied,
# hashed and written again and again. Of that size they are in test_linear_spaces.py.
WIDE, NARROW = 4096, 256


def torchvision_models():
    """The module `torchvision.models`; skips the test where there is no torchvision."""
    if importlib.util.find_spec("torchvision") is None:
        pytest.skip("needs torchvision: pip install 'tvm-sparse[test]'")
    return check_torchvision.torchvision_models()


def pruned(name, image, seed=0):
    """The model `name` of torchvision for images of that height and width, in evaluation mode on the CPU.

    The weights of each convolution but the first and depthwise ones are pruned by magnitude to `DENSITY`; batch norms
    have the statistics that random images lead to. No linear layer is `WIDE`.
    """
    torch.manual_seed(seed)
    model = getattr(torchvision_models(), name)(weights=None, **OPTIONS.get(name, {}))
    _narrow_head(model)
    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    with torch.no_grad():
        for convolution in convolutions[1:]:
            if convolution.groups == 1:
                prune(convolution.weight)
        _set_statistics(model, torch.randn(8, 3, image, image))
    return model.eval()


def _narrow_head(model):
    for parent in list(model.modules()):
        for name, layer in parent.named_children():
            if isinstance(layer, nn.Linear):
                sizes = [NARROW if size == WIDE else size for size in (layer.in_features, layer.out_features)]
                if sizes != [layer.in_features, layer.out_features]:
                    setattr(parent, name, nn.Linear(*sizes))


def prune(weight, density=DENSITY):
    """Set the smallest entries to zero, in place, and scale the others so that outputs stay as large."""
    with torch.no_grad():
        least = weight.abs().flatten().kthvalue(max(1, round(weight.numel() * (1 - density)))).values
        kept = weight.abs() > least
        scale = weight.norm() / (weight * kept).norm()
        weight.copy_(torch.where(kept, weight * scale, 0))


def _set_statistics(model, images):
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        # The plain mean over all batches, of which there is one.
        norm.momentum = None
    model.train()(images)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
