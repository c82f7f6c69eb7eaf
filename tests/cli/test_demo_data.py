"""The demo's files hold what they promise, and the scripts' models are valid and run."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from benchmarks import networks
from tvm_sparse.cli import demo_data

SCRIPTS = Path(__file__).parents[2] / "scripts/models"


@pytest.fixture
def make_models():
    """What the script writes."""
    return networks


def conv_weights(model):
    """Weights (K, C / groups, R, S) by the name of the convolution, in graph order."""
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    return {n.name: numpy_helper.to_array(constants[n.input[1]]) for n in model.graph.node if n.op_type == "Conv"}


def density(weight):
    return np.count_nonzero(weight) / weight.size


def run(model, x):
    """The first output of ONNX Runtime on one thread for all images of `x`, as many a run as the model takes."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    batch = session.get_inputs()[0].shape[0]
    return np.concatenate([session.run(None, {"x": x[i : i + batch]})[0] for i in range(0, len(x), batch)])


def test_images_and_labels():
    x, y = demo_data.images(), demo_data.labels()
    assert x.shape == (450, 1, 32, 32)
    assert x.dtype == np.float32
    assert (x.min(), x.max()) == (0, 1)
    assert y.shape == (450,)
    # Stratified: every digit is about a tenth.
    assert np.bincount(y, minlength=10).min() >= 40


def test_preprocess_is_exact_bilinear_interpolation():
    small = np.random.default_rng(0).integers(0, 17, (3, 8, 8), np.uint8)
    positions = ((np.arange(32) + 0.5) / 4 - 0.5).clip(0, 7)
    rows = np.stack([[np.interp(positions, np.arange(8), row) for row in image] for image in small])
    expected = np.stack([[np.interp(positions, np.arange(8), column) for column in image.T] for image in rows])
    # All values are multiples of 2**-10, so there is no rounding and no tolerance.
    np.testing.assert_array_equal(demo_data.preprocess(small)[:, 0], expected.transpose(0, 2, 1) / 16)


def test_preprocess_keeps_flat_images_flat():
    assert (demo_data.preprocess(np.full((1, 8, 8), 16, np.uint8)) == 1).all()


@pytest.mark.parametrize("which", ["dense", "pruned"])
def test_demo_model_is_small_valid_and_accurate(which):
    path = demo_data.model_path(which)
    assert path.stat().st_size < 400_000
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    assert sum(node.op_type == "BatchNormalization" for node in model.graph.node) == 6
    y = run(model, demo_data.images())
    assert np.mean(y.argmax(axis=1) == demo_data.labels()) >= 0.97


def test_demo_densities():
    stem, *others = conv_weights(onnx.load(demo_data.model_path("pruned"))).values()
    assert density(stem) == 1
    assert len(others) == 5
    assert [round(density(weight), 3) for weight in others] == [0.1] * 5
    dense = conv_weights(onnx.load(demo_data.model_path("dense")))
    assert min(map(density, dense.values())) == 1


@pytest.mark.parametrize("name", ["resnet18", "resnet50", "vgg16", "mobilenet"])
@pytest.mark.parametrize("classifier", ["small", "none"])
def test_random_models_run(make_models, name, classifier):
    options = make_models.Options(batch=2, image=64, width=0.125, classifier=classifier)
    model = make_models.MODELS[name](options)
    y = run(model, np.random.default_rng(0).standard_normal((2, 3, 64, 64)).astype(np.float32))
    assert y.shape == tuple(d.dim_value for d in model.graph.output[0].type.tensor_type.shape.dim)
    assert y.ndim == (2 if classifier == "small" else 4)
    assert np.isfinite(y).all()
    assert 0.05 < y.std() < 20


@pytest.mark.parametrize("prune_first", [False, True])
@pytest.mark.parametrize("prune_depthwise", [False, True])
def test_random_models_have_the_density_asked_for(make_models, prune_first, prune_depthwise):
    options = make_models.Options(
        image=32, width=0.25, density=0.2, prune_first=prune_first, prune_depthwise=prune_depthwise
    )
    (_, first), *others = conv_weights(make_models.mobilenet(options)).items()
    assert density(first) == pytest.approx(0.2 if prune_first else 1, abs=1 / first.size)
    for name, weight in others:
        expected = 0.2 if prune_depthwise or "depthwise" not in name else 1
        assert density(weight) == pytest.approx(expected, abs=1 / weight.size)


@pytest.mark.parametrize("asked", [0, 1])
def test_random_models_at_the_ends_of_density(make_models, asked):
    options = make_models.Options(image=32, width=0.125, density=asked, prune_first=True)
    model = make_models.MODELS["resnet18"](options)
    assert {density(weight) for weight in conv_weights(model).values()} == {asked}
    assert np.isfinite(run(model, np.ones((1, 3, 32, 32), np.float32))).all()


def test_seed_decides_the_random_weights(make_models):
    def text(seed):
        return make_models.vgg16(make_models.Options(image=32, width=0.125, seed=seed)).SerializeToString()

    assert text(0) == text(0)
    assert text(0) != text(1)


def run_script(monkeypatch, *words):
    """In this process, which has what it imports."""
    script = SCRIPTS / "make_models.py"
    monkeypatch.setattr(sys, "argv", [script.name, *words])
    runpy.run_path(str(script), run_name="__main__")


def test_command_line_writes_a_model(tmp_path, monkeypatch):
    path = tmp_path / "tiny.onnx"
    options = ["--image", "32", "--width", "0.125", "--density", "0.1", "--batch", "3", "-o", str(path)]
    run_script(monkeypatch, "resnet50", *options)
    assert onnx.load(path).graph.input[0].type.tensor_type.shape.dim[0].dim_value == 3


def test_command_line_refuses_a_wrong_density(monkeypatch, capsys):
    with pytest.raises(SystemExit) as end:
        run_script(monkeypatch, "resnet18", "--density", "10")
    assert end.value.code == 2
    assert "allowed: 0 to 1" in capsys.readouterr().err
