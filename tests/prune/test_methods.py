"""Pruning one layer: each pattern is there, amounts hold, masks grow, last and compose with torch's own."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import prune as torch_prune

from tvm_sparse import prune
from tvm_sparse.conv.structure import Structure
from tvm_sparse.errors import UsageError
from tvm_sparse.frontend.weights import module_weights
from tvm_sparse.prune.layers import mask_of

PATTERNS = (
    "unstructured",
    "vector8",
    "vector16p",
    "slice32c",
    "slice32cr",
    "slice64cp",
    "slice64cr+vector8",
    "filters",
)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def conv(c=64, k=128, kernel=3, **more):
    return nn.Conv2d(c, k, kernel, **more)


@pytest.mark.parametrize("name", PATTERNS)
def test_a_layer_gets_the_pattern_and_keeps_its_values(name):
    layer = conv()
    before = layer.weight.detach().clone()
    assert prune.pattern(layer, name, 0.8) is layer
    mask = mask_of(layer)
    assert Structure.of(mask).name == name
    assert abs(mask.mean() - 0.2) < 0.01
    assert torch.equal(layer.weight.detach(), before * torch.from_numpy(mask))


@pytest.mark.parametrize("name", PATTERNS)
def test_masks_only_grow_and_keep_their_pattern(name):
    layer, masks = conv(), []
    for amount in (0.5, 0.75, 0.9):
        prune.pattern(layer, name, amount)
        masks.append(mask_of(layer))
        # By now some other units would be chosen.
        layer.weight_orig.data.add_(0.02 * torch.randn_like(layer.weight_orig))
    assert [Structure.of(mask).name for mask in masks] == [name] * 3
    np.testing.assert_allclose([1 - mask.mean() for mask in masks], [0.5, 0.75, 0.9], atol=0.01)
    assert not (masks[1] & ~masks[0]).any() and not (masks[2] & ~masks[1]).any()


def test_functions_are_the_patterns():
    made = {
        "unstructured": lambda layer: prune.unstructured(layer, 0.7),
        "vector16": lambda layer: prune.vector(layer, amount=0.7),
        "vector4p": lambda layer: prune.vector(layer, 4, 0.7, permute=True),
        "slice64c": lambda layer: prune.tile_slices(layer, amount=0.7),
        "slice32cr": lambda layer: prune.tile_slices(layer, 32, "cr", 0.7),
        "slice64cr+vector8": lambda layer: prune.tile_slices(layer, 64, "cr", 0.9, v=8, slice_amount=0.7),
        "2:4": prune.two_four,
        "filters": lambda layer: prune.filters(layer, 0.7),
        "slice128c": lambda layer: prune.channels(layer, 0.7),
    }
    for name, function in made.items():
        assert Structure.of(mask_of(function(conv()))).name == name


@pytest.mark.parametrize("layer", [conv(c=8), nn.Linear(64, 32)])
def test_fours_of_input_channels_share_their_zeros(layer):
    prune.pattern(prune.pattern(layer, "channels4", 0.5), "channels4", 0.8)
    mask = mask_of(layer)
    k, c, r, s = mask.shape
    fours = mask.reshape(k, c // 4, 4, r, s)
    assert (fours == fours[:, :, :1]).all() and 1 - mask.mean() == pytest.approx(0.8, abs=0.01)


def test_a_linear_layer_is_a_1x1_convolution():
    layer = prune.vector(nn.Linear(256, 64), 8, 0.9)
    assert layer.weight_mask.shape == (64, 256)
    assert Structure.of(mask_of(layer)).name == "vector8"


@pytest.mark.parametrize("kind", [nn.Conv1d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d])
def test_layers_of_all_ranks_have_vectors_of_output_channels(kind):
    layer = kind(16, 32, 3, groups=2)
    prune.vector(layer, 16, 0.75)
    mask = mask_of(layer)
    assert mask.shape[:2] == (32, 8)
    assert mask.mean() == 0.25
    assert (mask.reshape(2, 16, *mask.shape[1:]).sum(axis=1) % 16 == 0).all()
    output = layer(torch.ones(1, 16, *[5] * int(kind.__name__[-2])))
    assert output.shape[1] == 32


def test_vectors_stay_within_groups():
    layer = prune.vector(conv(64, 96, groups=2), 16, 0.8, permute=True)
    found = Structure.of(mask_of(layer), groups=2)
    assert found.name == "vector16p"
    assert (np.asarray(found.order[:48]) < 48).all()
    with pytest.raises(UsageError, match="vector32 does not divide the output channels of a group, found 48; take vec"):
        prune.vector(conv(64, 96, groups=2), 32)


def test_the_given_saliency_decides():
    layer = conv(8, 16)
    saliency = torch.zeros_like(layer.weight)
    saliency[4:8, 3] = 1
    prune.vector(layer, 4, 1 - 9 / (4 * 8 * 9), saliency=saliency)
    assert torch.equal(layer.weight_mask, saliency)


def test_masks_survive_training_state_dicts_and_removal():
    net, twin = (nn.Sequential(conv(1, 16), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 36, 3)) for _ in range(2))
    prune.vector(net[0], 8, 0.5)
    zeros = net[0].weight == 0
    data = [(torch.randn(8, 1, 8, 8), torch.randint(3, (8,))) for _ in range(4)]
    before = net[0].weight.detach().clone()
    prune.fine_tune(net, data, epochs=3)
    assert torch.equal(net[0].weight == 0, zeros) and not torch.equal(net[0].weight, before)
    prune.vector(twin[0], 8, 0.1)
    twin.load_state_dict(net.state_dict())
    x = torch.randn(2, 1, 8, 8)
    assert torch.equal(twin.eval()(x), net(x))
    assert Structure.of(module_weights(net)["0"] != 0).name == "vector8"
    torch_prune.remove(net[0], "weight")
    assert isinstance(net[0].weight, nn.Parameter) and torch.equal(net[0].weight == 0, zeros)
    assert torch.equal(net(x), twin(x))


def test_it_composes_with_torch_s_own_pruning():
    layer = conv()
    torch_prune.l1_unstructured(layer, "weight", 0.3)
    first = mask_of(layer)
    prune.unstructured(layer, 0.6)
    assert not (mask_of(layer) & ~first).any()
    assert abs(mask_of(layer).mean() - 0.4) < 1e-4
    torch_prune.l1_unstructured(layer, "weight", 0.5)
    assert abs(mask_of(layer).mean() - 0.2) < 1e-4


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda: prune.unstructured(nn.ReLU(), 0.5),
            "cannot be pruned, found ReLU; allowed: Conv1d, ",
        ),
        (lambda: prune.unstructured(conv(), 1.0), "amount is not usable, found 1.0"),
        (lambda: prune.unstructured(conv(), -0.1), "amount is not usable, found -0.1"),
        (lambda: prune.vector(conv(), 5), "unknown pattern, found vector5"),
        (lambda: prune.tile_slices(conv(), 64, "s"), "unknown pattern, found slice64s"),
        (lambda: prune.tile_slices(conv(), amount=0.5, v=8, slice_amount=0.6), "slice_amount is not usable, found 0.6"),
        (lambda: prune.two_four(conv(c=6)), "2:4 needs input channels in fours, found 6"),
        (lambda: prune.pattern(conv(c=6), "channels4", 0.9), "channels4 needs input channels in fours, found 6"),
        (lambda: prune.pattern(conv(), "2:4", 0.9), "2:4 has one amount, found 0.9"),
        (lambda: prune.vector(conv(), saliency=torch.zeros(3)), "saliency does not fit the weight"),
    ],
)
def test_mistakes_are_one_sentence(call, sentence):
    with pytest.raises(UsageError) as error:
        call()
    assert sentence in str(error.value)


def test_without_torch_a_sentence_says_what_to_install():
    code = "import sys; sys.modules['torch'] = None\nfrom tvm_sparse import prune\nprint(prune.cubic(0.5, 1))\n"
    code += "prune.vector(object())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "[0.5]\n"
    assert done.stderr.splitlines()[-1].endswith(
        "UsageError: torch: the package is not installed; run: pip install 'tvm-sparse[torch]'"
    )


def test_only_public_names_are_there():
    assert set(prune.__all__) <= set(dir(prune))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = prune.nonsense
