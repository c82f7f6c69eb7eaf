"""Layers in front of a convolution, drawn at random: what a kernel of a bottleneck is timed and verified with.

A record of a log is of the last layer and its weight; how long the kernel takes depends on no layer's values. Where it
computes a model's layers it is verified with all of theirs (`compiler.building.verify_bottlenecks`).
"""

from dataclasses import replace

import numpy as np

from tvm_sparse.conv.chain_reference import chain_reference
from tvm_sparse.conv.random_weights import normal_weight
from tvm_sparse.conv.reference import random_arguments, repetition
from tvm_sparse.scheduling.cuda.bottleneck.bottleneck import Bottleneck

_SEED = 61
# Of weights that are drawn.
_DENSITY = 0.1


def sample_layers(bottleneck: Bottleneck, weight: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Weights (K, C, R, S) and biases (K,) of three layers, of which the last has this weight; the same each time."""
    first, second, _ = bottleneck
    drawn = [normal_weight(spec, _DENSITY, [_SEED, index]) for index, spec in enumerate((first, second))]
    # Not of a batch's inputs, which are drawn too.
    biases = [random_arguments(replace(spec, n=1), _SEED)["bias"] for spec in bottleneck]
    return [*drawn, weight], biases


def sample_arrays(bottleneck: Bottleneck, weight: np.ndarray, seed: int) -> dict[str, np.ndarray]:
    """What `measure.kernel_run` verifies a kernel with, by names: tensors in NHWC of the images of a batch that differ.

    ``images`` says which of these each image of the batch is.
    """
    images = repetition(bottleneck.first.n, seed)
    x = random_arguments(replace(bottleneck.first, n=int(images.max()) + 1), seed)["x"]
    weights, biases = sample_layers(bottleneck, weight)
    expected = chain_reference(bottleneck, weights, biases, x)
    tensors = {"x": x, "value": expected.value, "bound": expected.bound}
    in_nhwc = {name: np.ascontiguousarray(each.transpose(0, 2, 3, 1)) for name, each in tensors.items()}
    return {**in_nhwc, "images": images, "largest_input": np.array(expected.largest_input)}
