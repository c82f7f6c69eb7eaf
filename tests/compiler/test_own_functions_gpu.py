"""Functions of our own on a real GPU: extremes that keep NaN and know infinity, and RoiAlign.

python -m pytest -m gpu tests/compiler/test_own_functions_gpu.py
"""

import numpy as np
import pytest
import tvm
from onnx.reference import ReferenceEvaluator
from onnx_nodes import one_node, runtime
from test_roi_align import ODD, align

import tvm_sparse

pytestmark = pytest.mark.gpu
ODD_NUMBERS = np.float32([np.nan, np.inf, -np.inf, 0.0, -3.0, 7.0])
PAIRS = np.stack([grid.ravel() for grid in np.meshgrid(ODD_NUMBERS, ODD_NUMBERS)])
ROWS = np.float32([[-np.inf] * 4, [np.inf] * 4, [3, -np.inf, np.inf, 3], [-1, -2, -2, -1]])


def on_the_gpu(model, inputs, folder):
    path = folder / "m.onnx"
    path.write_bytes(model.SerializeToString())
    placed = [tvm.runtime.tensor(np.ascontiguousarray(each), tvm.cuda(0)) for each in inputs.values()]
    return tvm_sparse.compile(path, target="cuda", compare=False)(*placed).numpy()


@pytest.mark.parametrize(("operator", "numpy"), [("Max", np.maximum), ("Min", np.minimum)])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
def test_the_farther_of_two_keeps_nan(operator, numpy, dtype, tmp_path):
    x, y = (PAIRS if "float" in dtype else np.nan_to_num(PAIRS, posinf=99, neginf=-99)).astype(dtype)
    inputs = {"x": x, "z": y}
    np.testing.assert_array_equal(on_the_gpu(one_node(operator, inputs), inputs, tmp_path), numpy(x, y))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_bounds_keep_nan(dtype, tmp_path):
    inputs = {"x": ODD_NUMBERS.astype(dtype)}
    found = on_the_gpu(one_node("Relu", inputs), inputs, tmp_path)
    np.testing.assert_array_equal(found, np.maximum(inputs["x"], 0))
    bounds = {"low": np.asarray(-2, dtype), "high": np.asarray(5, dtype)}
    found = on_the_gpu(one_node("Clip", inputs, bounds), inputs, tmp_path)
    np.testing.assert_array_equal(found, np.clip(inputs["x"], -2, 5))


@pytest.mark.parametrize("operator", ["ArgMax", "ArgMin", "ReduceMax", "ReduceMin"])
@pytest.mark.parametrize("axis", [0, 1])
def test_extremes_along_an_axis(operator, axis, tmp_path):
    is_place = operator.startswith("Arg")
    attributes, constants = ({"axis": axis}, {}) if is_place else ({}, {"axes": np.int64([axis])})
    inputs = {"x": ROWS}
    model = one_node(operator, inputs, constants, dtype="int64" if is_place else None, **attributes)
    (expected,) = ReferenceEvaluator(model).run(None, inputs)
    np.testing.assert_array_equal(on_the_gpu(model, inputs, tmp_path), expected)


@pytest.mark.parametrize("coordinates", ["half_pixel", "output_half_pixel"])
def test_regions(coordinates, tmp_path):
    rng = np.random.default_rng(1)
    middle, size = rng.uniform(-30, 40, (60, 2)), rng.choice([0, 0.1, 1, 5, 30, 300], (60, 2))
    regions = np.concatenate([middle - size / 2, middle + size / 2], 1)
    model, inputs = align(regions, coordinate_transformation_mode=coordinates)
    np.testing.assert_allclose(on_the_gpu(model, inputs, tmp_path), runtime(model, inputs), atol=1e-5)
    model, inputs = align(ODD, coordinate_transformation_mode=coordinates)
    found = on_the_gpu(model, inputs, tmp_path)
    assert np.isfinite(found).all() and np.abs(found[1:3]).max() < 1e-6
