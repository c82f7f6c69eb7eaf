"""Networks as people bring them agree with torch, as modules and as ONNX files, after all passes of the frontend."""

from __future__ import annotations

import warnings

import pytest
import torch
import zoo
from torch_networks import NETWORKS, network

from tvm_sparse.conv.reference import relative_difference
from tvm_sparse.frontend.prepare import prepare

SAMPLE = ("detector", "unet of nearest pixels")
BOUND = 1e-3
# torch's exporter writes no adaptive pools of uneven windows, no affine grids and no channel shuffles.
NOT_EXPORTED = ("alexnet", "gated", "spatial transformer")


def assert_agrees(name, source, model, x):
    with torch.no_grad():
        wanted = model(x.clone()).numpy()
    # Behind its outputs may be the bounds of indices.
    found, *_ = zoo.run_relax(prepare(source, None if source is not model else x).mod, x.numpy())
    assert found.shape == wanted.shape
    assert relative_difference(found, wanted) < BOUND, name


def exported(model, x, path):
    """The file that torch's exporter of TorchScript writes, which needs no other package."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model, (x,), path, dynamo=False, opset_version=18)
    return path


@pytest.mark.conformance
@pytest.mark.parametrize("name", NETWORKS)
def test_a_module_agrees_with_torch(name):
    model, x = network(name)
    assert_agrees(name, model, model, x)


@pytest.mark.conformance
@pytest.mark.parametrize("name", [name for name in NETWORKS if name not in NOT_EXPORTED])
def test_its_onnx_file_agrees_with_torch(name, tmp_path):
    model, x = network(name)
    assert_agrees(name, exported(model, x, tmp_path / "model.onnx"), model, x)


@pytest.mark.parametrize("name", SAMPLE)
def test_a_sample_agrees_with_torch(name):
    model, x = network(name)
    assert_agrees(name, model, model, x)
