"""Pruning a network so that it does what it did: layer by layer by least squares, then all of it by distillation."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from onnx_module import OnnxModule
from torch.nn.functional import log_softmax, unfold
from torch.nn.utils.prune import remove

from tvm_sparse import prune

# Smaller weights stay whole: they are few, and early layers see every pixel.
LEAST_PRUNED = 2000
# A layer is pruned in so many steps, and fitted again after each.
STEPS_OF_PRUNING = 2
# Of the mean of what inputs have: keeps weights near the old ones where the images say nothing of them.
RIDGE = 1e-3
RATE = 5e-4


def pruned_layers(network: OnnxModule) -> dict[str, Any]:
    """By key: ungrouped layers of some size."""
    return {
        key: layer
        for key, layer in network.layers.items()
        if layer.weight.numel() >= LEAST_PRUNED and getattr(layer, "groups", 1) == 1
    }


def prune_by_magnitude(network: OnnxModule, amount: float, like: OnnxModule) -> None:
    """Set `amount` of each layer that `like` has zeros in to zero, and change nothing else."""
    for key, layer in pruned_layers(network).items():
        if (like.layers[key].weight == 0).any():
            prune.unstructured(layer, amount)
            remove(layer, "weight")


def prune_by_fitting(network: OnnxModule, teacher: OnnxModule, images: torch.Tensor, amount: float) -> None:
    """Set `amount` of each layer to zero, so that the layer gives what the teacher's gives, as far as that goes.

    In the order of computation: a layer is fitted to what those in front of it give by then.
    """
    wanted: dict[str, torch.Tensor] = {}
    amounts = prune.cubic(amount, STEPS_OF_PRUNING)
    hooks = []
    for key, layer in pruned_layers(network).items():
        hooks += [
            teacher.layers[key].register_forward_hook(lambda _, __, output, key=key: wanted.update({key: output})),
            layer.register_forward_pre_hook(lambda each, given, key=key: _fit(each, given[0], wanted[key], amounts)),
        ]
    with torch.no_grad():
        teacher(images)
        network(images)
    for hook in hooks:
        hook.remove()


def _fit(layer: Any, x: torch.Tensor, y: torch.Tensor, amounts: Sequence[float]) -> None:
    """Zeros where the loss of squares is least (Hassibi and Stork 1993), and the best other weights with them."""
    if x.ndim == 4:
        x = unfold(x, layer.kernel_size, padding=layer.padding, stride=layer.stride).transpose(1, 2)
        y = y.flatten(2).transpose(1, 2)
    inputs, outputs = x.flatten(0, -2).double(), y.flatten(0, -2).double()
    if len(inputs) <= inputs.shape[1]:
        # Too few images to say, as where a layer sees one pixel of each; and then it takes no time.
        return
    weight = layer.weight.detach().flatten(1).double()
    products = inputs.T @ inputs
    ridge = RIDGE * products.diagonal().mean()
    products.diagonal().add_(ridge)
    wanted = outputs.T @ inputs + ridge * weight
    weight = torch.linalg.solve(products, wanted.T).T.contiguous()
    curvature = torch.linalg.inv(products).diagonal()
    for amount in amounts:
        saliency = (weight.square() / curvature).float().view_as(layer.weight)
        prune.unstructured(layer, amount, saliency=saliency)
        remove(layer, "weight")
        kept = (layer.weight != 0).flatten(1)
        weight.zero_()
        for row, at in enumerate(kept):
            weight[row, at] = torch.linalg.solve(products[at][:, at], wanted[row, at])
        layer.weight.copy_(weight.float().view_as(layer.weight))


def loss_of(given: list[torch.Tensor], wanted: list[torch.Tensor], places: list[int]) -> torch.Tensor:
    """How far the answers are from the teacher's, and the outputs of layers, as shares of their mean squares."""
    target = log_softmax(wanted[-1], -1)
    answers = (target.exp() * (target - log_softmax(given[-1], -1))).sum(-1).mean()
    layers = [(given[at] - wanted[at]).square().mean() / wanted[at].square().mean() for at in places]
    return answers + torch.stack(layers).mean()


def distil(
    network: OnnxModule,
    teacher: OnnxModule,
    images: Callable[[int], torch.Tensor],
    steps: int,
    checkpoint: Path,
    say: Callable[[str], None] = print,
) -> None:
    """Train `network` to do what `teacher` does, its zeros kept, in place; goes on after a stop.

    Parameters
    ----------
    images
        The batch of a step.
    checkpoint
        Is written every 50 steps, and read where it exists.
    """
    keys = list(network.layers)
    places = [keys.index(key) for key in pruned_layers(network)]
    masks = {key: layer.weight != 0 for key, layer in pruned_layers(network).items()}
    optimizer = torch.optim.Adam(network.parameters(), RATE)
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps, pct_start=0.1)
    taught, learned = torch.compile(teacher), torch.compile(network)
    first = 0
    if checkpoint.exists():
        first, *states = torch.load(checkpoint)
        for each, state in zip((network, optimizer, cycle), states, strict=True):
            each.load_state_dict(state)
    start = time.time()
    for step in range(first, steps):
        x = images(step)
        with torch.no_grad():
            wanted = taught(x)
        loss = loss_of(learned(x), wanted, places)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        cycle.step()
        with torch.no_grad():
            for key, mask in masks.items():
                network.layers[key].weight.mul_(mask)
        if step % 10 == 9:
            say(f"step {step + 1} of {steps}: loss {loss.item():.4f}, {time.time() - start:.0f} s")
        if step % 50 == 49:
            torch.save((step + 1, *(each.state_dict() for each in (network, optimizer, cycle))), checkpoint)
