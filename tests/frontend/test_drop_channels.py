"""Filters and channels that add only zeros are taken out wherever they are, and nothing else changes."""

import numpy as np
import pytest
import random_graphs
import torch
from tvm import relax

from tvm_sparse.frontend.passes.channels import drop_channels as pass_
from tvm_sparse.frontend.passes.channels.drop_channels import drop_channels
from tvm_sparse.frontend.passes.find_convolutions import find_convolutions

X = np.random.default_rng(0).standard_normal(random_graphs.IMAGE).astype(np.float32)


@pytest.fixture(autouse=True)
def one_thread():
    """Threads take longer to start than such operators to run."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def sizes(module):
    return [(layer.spec.c, layer.spec.k) for layer in find_convolutions(module)]


def check(seeds, monkeypatch, width):
    """Compare random networks with what is left of them; how many have lost something."""
    monkeypatch.setattr(pass_, "WIDTH", width)
    count = 0
    for seed in seeds:
        module = random_graphs.Network(seed).module(4 + seed % 12)
        found = drop_channels(module)
        relax.analysis.check_well_formed(found)
        for got, want in zip(*(random_graphs.outputs_of(each, X) for each in (found, module)), strict=True):
            np.testing.assert_allclose(
                got, want, rtol=1e-5, atol=1e-6 * max(1.0, np.abs(want).max()), err_msg=f"{seed}"
            )
        count += found is not module
    return count


def test_outputs_of_random_networks_stay(monkeypatch):
    assert check(range(30), monkeypatch, width=1) > 20


@pytest.mark.exhaustive
@pytest.mark.parametrize("width", [1, 2, 16])
def test_outputs_of_many_random_networks_stay(width, monkeypatch):
    assert check(range(100, 700), monkeypatch, width) > 200


class Chain:
    """Convolutions of 3x3 with biases and ReLUs, one behind the other, of an input of 32 channels."""

    def __init__(self, *filters):
        rng, counts = np.random.default_rng(0), (32, *filters)
        shapes = [(k, c, 3, 3) for c, k in zip(counts, filters, strict=False)]
        self.weights = [rng.uniform(0.1, 1, shape).astype(np.float32) for shape in shapes]
        self.biases = [rng.uniform(0.1, 1, shape[0]).astype(np.float32) for shape in shapes]

    def module(self, padding=1, has_relu=True):
        builder = relax.BlockBuilder()
        y = x = relax.Var("x", relax.TensorType((1, 32, 7, 7), "float32"))
        with builder.function("main", [x]):
            with builder.dataflow():
                for weight, bias in zip(self.weights, self.biases, strict=True):
                    y = builder.emit(relax.op.nn.conv2d(y, relax.const(weight), padding=padding))
                    y = builder.emit(relax.op.add(y, relax.const(bias[:, None, None])))
                    y = builder.emit(relax.op.nn.relu(y)) if has_relu else y
                y = builder.emit_output(relax.op.mean(y, [2, 3]))
            builder.emit_func_output(y)
        return builder.finalize()


def test_a_network_that_needs_all_stays_itself():
    network = Chain(32, 48)
    # Zeros, but of no whole filter or channel.
    network.weights[0][::2, ::2] = network.weights[1][1::2, 1::2] = 0
    module = network.module()
    assert drop_channels(module) is module


@pytest.mark.parametrize(("alive", "left"), [(15, 16), (16, 16), (17, 32), (0, 16)])
def test_whole_vectors_stay(alive, left):
    network = Chain(48, 5)
    network.weights[0][alive:], network.biases[0][alive:] = 0, -0.5
    assert sizes(drop_channels(network.module())) == [(32, left), (left, 5)]


def test_what_nobody_reads_goes_with_all_that_only_it_reads():
    network = Chain(32, 64, 80, 16)
    network.weights[3][:, 16:] = 0
    network.weights[2][:16, 32:] = 0
    module = network.module()
    assert sizes(drop_channels(module)) == [(32, 32), (32, 32), (32, 16), (16, 16)]
    # Without what the last layer reads there is nothing to keep.
    network.weights[3][:] = 0
    assert sizes(drop_channels(network.module())) == [(32, 16), (16, 16), (16, 16), (16, 16)]


@pytest.mark.parametrize(("padding", "left"), [(1, 9), (0, 8)])
def test_constant_channels_are_in_one_of_them_or_in_a_bias(padding, left, monkeypatch):
    monkeypatch.setattr(pass_, "WIDTH", 1)
    network = Chain(32, 8)
    network.weights[0][8:], network.biases[0][8:20], network.biases[0][20:] = 0, -1.0, np.linspace(0.5, 3, 12)
    x = np.random.default_rng(1).standard_normal((1, 32, 7, 7)).astype(np.float32)
    # Without ReLUs those below zero are constants as well.
    for has_relu in (True, False):
        module = network.module(padding, has_relu)
        found = drop_channels(module)
        assert sizes(found) == [(32, left), (left, 8)]
        assert [layer.spec.bias for layer in find_convolutions(found)] == [True, True]
        (got,), (want,) = (random_graphs.outputs_of(each, x) for each in (found, module))
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
