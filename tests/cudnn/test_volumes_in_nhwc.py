"""Volumes that cuDNN reads in place, on a library that computes on the host, and what reads them beside it."""

import functools
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from fake_cudnn import HOST
from parameters import random_seeds
from torch import nn

from tvm_sparse.compiler import build_model
from tvm_sparse.compiler.building.make_kernels import kernels_of
from tvm_sparse.compiler.layouts.keep_nhwc import keep_nhwc, results_in_nhwc
from tvm_sparse.compiler.plan.choice import Predicted
from tvm_sparse.compiler.plan.kernel_selection import decide
from tvm_sparse.compiler.rewriting.replace_convolutions import replace_convolutions
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.conv.volumes import Volumes
from tvm_sparse.errors import BuildError
from tvm_sparse.frontend.passes.relax_graph import Graph, is_call
from tvm_sparse.frontend.prepare import prepare
from tvm_sparse.schedules import dense_cudnn
from tvm_sparse.target.resolve import resolve_target

CUDA = resolve_target('{"kind":"cuda","arch":"sm_90"}')
COPY, FUSED = "TransformTensor", "ConvolutionBiasActivationForward"
NCHW = {"layout": "nchw", "algorithm": "implicit_precomp_gemm", "epilogue": "fused"}
LAYOUTS = {"c": NCHW, "h": {**NCHW, "layout": "nhwc"}, "H": {**NCHW, "layout": "nhwc", "epilogue": "apart"}}
LAYOUTS["f"] = {**NCHW, "layout": "nhwc_staged"}


class Film(nn.Module):
    """A block of a network for films: two layers beside a shorter way, whose sum a third one reads."""

    def __init__(self, last=1):
        super().__init__()
        self.first = nn.Conv3d(4, 8, 3, (2, 1, 1), 1)
        self.second = nn.Conv3d(8, 8, (3, 1, 3), 1, (1, 0, 1), (1, 1, 1))
        self.beside = nn.Conv3d(4, 8, 1, (2, 1, 1))
        self.last = nn.Conv3d(8, 4, 3, 1, (last, 1, 1), (2 if last == 2 else 1, 1, 1), groups=2)

    def forward(self, x):
        y = torch.relu(self.second(torch.relu(self.first(x))) + self.beside(x))
        return self.last(y).mean((2, 3, 4))


@functools.cache
def film(last=1):
    """The module, its input, and the model that is prepared of it."""
    torch.manual_seed(0)
    module, x = Film(last).eval(), torch.randn(2, 4, 5, 6, 7)
    return module, x, prepare(module, (x,))


def compiled(prepared, layouts):
    """The model whose layers have the layouts that the letters stand for."""
    decisions = [
        replace(each, choice=Predicted("dense_cudnn:tf32", LAYOUTS[letter]))
        for each, letter in zip(decide(prepared.layers, HOST, None), layouts, strict=True)
    ]
    return build_model.build(prepared, decisions, HOST)


# In NHWC the input is converted, and what the mean reads.
@pytest.mark.parametrize("last", [1, 2])
@pytest.mark.parametrize(("layouts", "copies"), [("hhhh", 2), ("HHHH", 2), ("cccc", 0), ("hchh", None), ("chhc", None)])
def test_films_are_right_in_any_layouts(on_host, layouts, copies, last):
    module, x, prepared = film(last)
    model = compiled(prepared, layouts)
    assert [row["schedule"] for row in model.report()] == ["dense_cudnn:tf32"] * 4
    on_host.reset()
    found = np.asarray(model(x.numpy()))
    if copies is not None:
        assert on_host.names().count(COPY) == copies
    with torch.no_grad():
        expected = module(x).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-2, atol=1e-2 * np.abs(expected).max())


@pytest.mark.parametrize(("layouts", "copies"), [("fh", 1), ("fc", 1), ("ch", 2)])
def test_films_of_three_channels_are_written_anew_from_their_maps(on_host, layouts, copies):
    """Twelve channels of a pixel from three maps, also where volumes are padded at one end alone."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv3d(3, 8, 3, (1, 2, 2), 1), nn.ReLU(), nn.Conv3d(8, 4, (2, 1, 3))).eval()
    x = torch.randn(2, 3, 5, 6, 7)
    model = compiled(prepare(module, (x,)), layouts)
    assert [row["schedule"] for row in model.report()] == ["dense_cudnn:tf32"] * 2
    on_host.reset()
    found = np.asarray(model(x.numpy()))
    assert on_host.names().count(COPY) == copies
    with torch.no_grad():
        expected = module(x).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-2, atol=1e-2 * np.abs(expected).max())


def test_what_is_written_anew_is_read_of_volumes_as_they_lie(on_host):
    """No maps of them are made first."""
    module, x = nn.Conv3d(3, 8, 3, (1, 2, 2), 1).eval(), torch.zeros(2, 3, 5, 6, 7)
    prepared = prepare(module, (x,))
    (decision,) = decide(prepared.layers, HOST, None)
    decision = replace(decision, choice=Predicted("dense_cudnn:tf32", LAYOUTS["f"]))
    kernels = kernels_of(prepared.layers, [decision], HOST)
    found = replace_convolutions(prepared.mod, kernels, prepared.groups)
    found = keep_nhwc(found, results_in_nhwc(prepared, kernels), CUDA)
    called = [each for each in Graph.of(found).definitions.values() if is_call(each, "relax.call_tir")]
    staged = next(each for each in called if each.args[0].name_hint.endswith("volumes_to_nhwc"))
    assert staged.args[1][0].same_as(found["main"].params[0])


def test_what_nobody_has_decided_stays_cudnn_s(on_host):
    """In NCHW, by the schedule's own decisions."""
    module, x, prepared = film()
    model = build_model.build(prepared, decide(prepared.layers, HOST, None), HOST)
    assert {row["schedule"] for row in model.report()} == {"dense_cudnn"}
    with torch.no_grad():
        np.testing.assert_allclose(np.asarray(model(x.numpy())), module(x).numpy(), rtol=1e-4, atol=1e-5)


@random_seeds(range(4), 24)
def test_random_volumes_are_right(on_host, seeds):
    """Those that are padded alike at both ends in place, others as maps beside each other; none wrong."""
    met = set()
    for seed in seeds:
        choose = random.Random(seed)
        layer = nn.Conv3d(
            4, 6, (choose.choice((1, 2, 3)), 3, 2), (choose.choice((1, 2)), 1, 2), (choose.choice((0, 1, 2)), 1, 1),
            (choose.choice((1, 2)), 1, 1), groups=choose.choice((1, 2)),
        ).eval()  # fmt: skip
        x = torch.randn(2, 4, choose.choice((5, 6)), 5, 6)
        prepared = prepare(layer, (x,))
        (found,) = prepared.layers
        met.add(found.volumes is not None and dense_cudnn.in_nhwc(found.spec, found.volumes).volumes is not None)
        with torch.no_grad():
            expected = layer(x).numpy()
        found = np.asarray(compiled(prepared, "h")(x.numpy()))
        np.testing.assert_allclose(found, expected, rtol=1e-2, atol=1e-2 * np.abs(expected).max(), err_msg=str(layer))
    assert True in met


def test_cudnn_reads_no_volumes_in_nchw(fake):
    spec = ConvSpec(4, 12, 5, 5, 4, 3, 3, padding=(1, 1, 1, 1), volumes=Volumes(4, 4, 3, before=1))
    space = dense_cudnn.CudnnSpace(spec, "tf32")
    with pytest.raises(BuildError, match="NHWC only"):
        space.written(NCHW)
    assert dense_cudnn.reads_volumes(spec, LAYOUTS["h"]) == spec
    for asymmetric in (replace(spec, n=5, volumes=Volumes(4, 5, 3, before=1)), replace(spec, padding=(1, 0, 0, 0))):
        assert dense_cudnn.reads_volumes(asymmetric, LAYOUTS["h"]).volumes is None
