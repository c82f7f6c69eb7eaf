"""The table of ResNet-50's and VGG16's convolutions is what compiling these networks finds."""

from __future__ import annotations

from pathlib import Path

import make_models
import numpy as np
import onnx
import pytest

from tvm_sparse.autotune import session
from tvm_sparse.benchmarks import networks
from tvm_sparse.frontend.prepare import prepare


@pytest.mark.parametrize("network", networks.NETWORKS)
def test_the_table_holds_the_layers_of_the_compiled_model(network: str, tmp_path: Path) -> None:
    """Layer by layer: the same convolution, bias, residual and ReLU; narrow networks, to be quick."""
    options = make_models.Options(width=1 / 8, classifier="none")
    path = tmp_path / "model.onnx"
    onnx.save(make_models.MODELS[network](options), path)
    found = {task.names[0]: task.spec for task in session.tasks_of(prepare(path, None, None).layers)}
    wanted = networks.convolutions(network)
    shared = set(found) & set(wanted)
    # Narrow, a few layers coincide; every layer found is in the table.
    assert set(found) <= set(wanted) and len(shared) >= 0.8 * len(wanted)
    for layer in shared:
        ours, theirs = wanted[layer], found[layer]
        assert (ours.h, ours.r, ours.stride, ours.padding) == (theirs.h, theirs.r, theirs.stride, theirs.padding)
        assert (ours.bias, ours.residual, ours.relu) == (theirs.bias, theirs.residual, theirs.relu)
        assert ours.k // 8 == theirs.k and (ours.c == 3 or ours.c // 8 == theirs.c)


def test_weights_have_the_density() -> None:
    """All but the first convolution's."""
    layers = networks.convolutions("vgg16")
    dense, pruned = (networks.weight(layers[name], 0.1) for name in ("stage1.1.conv", "stage1.2.conv"))
    assert np.count_nonzero(dense) == dense.size
    assert np.count_nonzero(pruned) == round(0.1 * pruned.size)
