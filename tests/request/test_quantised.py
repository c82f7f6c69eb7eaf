"""A float model is quantised from samples: once, exactly as ONNX Runtime's file says, and refused in a sentence."""

from __future__ import annotations

import json
import sys

import numpy as np
import onnx
import pytest
import quantised
import zoo

import tvm_sparse as ts
from tvm_sparse.cli.main import main
from tvm_sparse.errors import InputError, ModelError, UsageError
from tvm_sparse.request.request import Request

WEIGHT = np.random.default_rng(0).standard_normal((8, 4, 3, 3)).astype(np.float32)
WEIGHT[:, :, 0] = 0
SAMPLES = np.random.default_rng(1).standard_normal((6, 4, 9, 9)).astype(np.float32)


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TVM_SPARSE_HOME", str(tmp_path / "home"))


@pytest.fixture
def path(tmp_path):
    """A convolution, a ReLU and a mean, of an operator set that has no scale for each channel."""
    nodes = [
        ("Conv", ["x", "c.weight"], ["a"], {"pads": [1, 1, 1, 1]}),
        ("Relu", ["a"], ["b"], {}),
        ("GlobalAveragePool", ["b"], ["y"], {}),
    ]
    model = zoo.onnx_model(nodes, {"c.weight": WEIGHT}, {"x": (2, 4, 9, 9)}, {"y": (2, 8, 1, 1)})
    model.opset_import[0].version = 12
    onnx.save(model, tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def test_it_is_quantised_once_with_its_zeros_and_names(path, tmp_path):
    np.savez(tmp_path / "samples.npz", x=SAMPLES)
    first = Request.of(path, dtype="int8", samples=tmp_path / "samples.npz")
    assert (first.dtype, first.samples, first.unquantised) == (None, None, path)
    written = first.source.stat().st_mtime_ns
    assert Request.of(path, dtype="int8", samples={"x": SAMPLES}).source == first.source
    assert first.source.stat().st_mtime_ns == written
    assert Request.of(path, dtype="int8", samples=SAMPLES.astype(np.float64)).source == first.source
    assert Request.of(path, dtype="int8", samples=SAMPLES[:4]).source != first.source
    (layer,) = first.prepared(first.variants[0]).layers
    assert layer.is_quantised and layer.name == "c" and layer.pattern.nnz <= WEIGHT.size * 2 // 3
    (found,) = zoo.run_relax(first.prepared(first.variants[0]).mod, SAMPLES[:2])
    (expected,) = zoo.run_onnx(onnx.load(first.source), SAMPLES[:2])
    assert np.abs(found - expected).max() <= 1.001 * np.diff(np.unique(expected)).min()


def test_it_is_checked_beside_onnx_runtime_and_float32(path):
    report = ts.check(path, dtype="int8", samples=SAMPLES, target=zoo.UNOPTIMISED, progress=False)
    assert report.failure is None
    (row,) = report.to_json()["inputs"]
    assert row["accuracy"]


def test_the_command_line_takes_samples(path, tmp_path, capsys):
    np.savez(tmp_path / "samples.npz", x=SAMPLES)
    assert main(["inspect", str(path), "--dtype", "int8", "--samples", str(tmp_path / "samples.npz"), "--json"]) == 0
    (layer,) = json.loads(capsys.readouterr().out)["layers"]
    assert layer["layer"] == "c"


CASES = {
    "missing": (None, UsageError, "samples: are missing, of which dtype int8 finds"),
    "shape": (SAMPLES[:, :3], InputError, "samples: those of input x have another shape.*allowed: samplesx4x9x9"),
    "rest": (SAMPLES[:3], InputError, "samples: are not as many of each input as the model takes, found x 3"),
    "none": (SAMPLES[:0], InputError, "samples: are not as many of each input as the model takes, found x 0"),
    "number": (np.float32(1), InputError, r"samples: those of input x have another shape, found \(\)"),
    "type": (SAMPLES * 1j, InputError, "samples: those of input x hold NaN or infinity, or are no numbers"),
    "large": (SAMPLES * np.float64(1e60), InputError, "samples: those of input x hold NaN or infinity"),
    "NaN": (SAMPLES * np.nan, InputError, "samples: those of input x hold NaN or infinity"),
    "others": ({"z": SAMPLES}, InputError, "samples: lack inputs, found x"),
}


@pytest.mark.parametrize("case", CASES)
def test_samples_that_do_not_fit_are_refused(case, path):
    samples, error, sentence = CASES[case]
    with pytest.raises(error, match=sentence):
        Request.of(path, dtype="int8", samples=samples)


def test_other_models_are_refused(path, tmp_path, monkeypatch):
    with pytest.raises(ModelError, match=r"dtype int8 is for \.onnx files, found Conv"):
        Request.of(zoo.conv(), dtype="int8", samples=SAMPLES)
    with pytest.raises(UsageError, match="samples: are of no use with this dtype, found float16"):
        Request.of(path, dtype="float16", samples=SAMPLES)
    onnx.save(quantised.node_model(("conv",)), tmp_path / "q.onnx")
    samples = {"x": SAMPLES[:1, :, :5, :5], "y": SAMPLES[:1, :, :5, :5], "matrix": SAMPLES[0, 0, :5, :4]}
    with pytest.raises(ModelError, match="it is quantised already"):
        Request.of(tmp_path / "q.onnx", dtype="int8", samples=samples)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(UsageError, match=r"the package is not installed.*\bort\b"):
        Request.of(path, dtype="int8", samples=SAMPLES)
