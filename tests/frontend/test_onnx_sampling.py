"""RoiAlign, GridSample, AffineGrid and MaxUnpool are what ONNX says."""

from itertools import product

import numpy as np
import pytest
from onnx_nodes import assert_right, imported, numbers, one_node, runtime
from parameters import sampled

from tvm_sparse.errors import ModelError

REGIONS = np.float32([[1.3, 0.2, 9.7, 12.1], [0.4, 6.1, 3.2, 8.8], [-2.1, 3.4, 14.2, 5.3]])


def align(**attributes):
    inputs = {"x": numbers(2, 3, 7, 8), "regions": REGIONS, "batch": np.array([1, 0, 1])}
    return one_node("RoiAlign", inputs, opset=16, output_height=2, output_width=3, **attributes), inputs


@pytest.mark.parametrize("samples", [0, 2])
@pytest.mark.parametrize("coordinates", ["half_pixel", "output_half_pixel"])
def test_regions_are_scaled_before_they_are_moved(coordinates, samples):
    options = {"coordinate_transformation_mode": coordinates, "sampling_ratio": samples, "spatial_scale": 0.5}
    assert_right(*align(**options), tolerance=1e-4)


def test_old_regions_are_not_moved():
    model, inputs = align(spatial_scale=0.5)
    model.opset_import[0].version = 10
    wanted = align(spatial_scale=0.5, coordinate_transformation_mode="output_half_pixel")
    assert_right(model, inputs, wanted=runtime(*wanted), tolerance=1e-4)


GRIDS = [*product(("linear", "nearest", "cubic"), ("zeros", "border", "reflection"), (0, 1))]
# Cubic ones take longest to compile.
SAMPLE = [each for each in GRIDS if each[0] != "cubic"][::2]


@pytest.mark.parametrize(("mode", "padding", "aligned"), sampled(GRIDS, SAMPLE))
def test_grids_of_images(mode, padding, aligned):
    grid = np.random.default_rng(1).uniform(-1.7, 1.7, (1, 5, 4, 2)).astype(np.float32)
    inputs = {"x": numbers(1, 1, 5, 4), "grid": grid}
    model = one_node("GridSample", inputs, opset=20, mode=mode, padding_mode=padding, align_corners=aligned)
    # At a border the reference takes cubic weights of the place on it, torch and ONNX Runtime of that outside.
    assert_right(model, inputs, wanted=runtime(model, inputs), tolerance=1e-4)


@pytest.mark.parametrize(("mode", "padding"), [("linear", "zeros"), ("nearest", "reflection"), ("linear", "border")])
def test_grids_of_volumes(mode, padding):
    grid = np.random.default_rng(1).uniform(-1.7, 1.7, (1, 2, 3, 2, 3)).astype(np.float32)
    inputs = {"x": numbers(1, 2, 3, 4, 3), "grid": grid}
    assert_right(one_node("GridSample", inputs, mode=mode, padding_mode=padding), inputs, tolerance=1e-4)


@pytest.mark.parametrize("aligned", [0, 1])
@pytest.mark.parametrize("sizes", [(4, 3), (2, 4, 3)])
def test_affine_grids(sizes, aligned):
    transform = {"transform": numbers(2, len(sizes), len(sizes) + 1)}
    model = one_node("AffineGrid", transform, {"size": np.array([2, 1, *sizes])}, align_corners=aligned)
    assert_right(model, transform)


@pytest.mark.parametrize("shape", [(1, 2, 6), (1, 2, 6, 5), (1, 2, 4, 6, 5)])
def test_pooled_elements_return(shape):
    sides = len(shape) - 2
    window = {"kernel_shape": [2] * sides, "strides": [2] * sides, "pads": [0, 0] * sides}
    values = numbers(*shape[:2], *[side // 2 for side in shape[2:]])
    outs = [2 * (side // 2) for side in shape[2:]]
    places = np.random.default_rng(0).permutation(int(np.prod([2, *outs])))[: values.size].reshape(values.shape)
    inputs = {"values": values, "places": places}
    model = one_node("MaxUnpool", inputs, **window)
    wanted = np.zeros([2 * int(np.prod(outs))], np.float32)
    wanted[places.ravel()] = values.ravel()
    assert_right(model, inputs, wanted=wanted.reshape(1, 2, *outs))


def test_elements_return_past_padding():
    inputs = {"values": numbers(1, 1, 3, 3), "places": np.arange(9).reshape(1, 1, 3, 3)}
    model = one_node("MaxUnpool", inputs, kernel_shape=[2, 2], strides=[2, 2], pads=[1, 0, 1, 1])
    wanted = np.zeros([1, 1, 4, 5], np.float32)
    wanted.ravel()[:9] = inputs["values"].ravel()
    assert_right(model, inputs, wanted=wanted)


def of_images(op, x, constants=None, **attributes):
    grid = {"grid": numbers(1, 2, 2, x.ndim - 2)} if x.ndim == 4 else {"grid": numbers(1, 2, 2, 2, 3)}
    return one_node(op, {"x": x, **grid}, constants, **attributes)


POOLED = {"values": numbers(1, 1, 2, 2), "places": np.arange(4).reshape(1, 1, 2, 2)}


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (align(mode="max")[0], "its mode is not supported, found max; allowed: avg; export it with mode='avg'"),
        (
            of_images("GridSample", numbers(1, 1, 2, 3, 2), mode="cubic"),
            "it samples data of rank 5, found cubic; allowed: rank 4, and 5 unless it is cubic",
        ),
        (
            of_images("GridSample", numbers(1, 1, 1, 3), padding_mode="reflection", align_corners=1),
            r"it reflects a side of one pixel at its middle, found \[1, 3\]; allowed: sides of 2 or more",
        ),
        (
            one_node("AffineGrid", {"t": numbers(1, 2, 3)}, {"size": np.array([1, 1, 1, 4])}, align_corners=1),
            r"it aligns the corners of a side of one pixel, found \[1, 4\]",
        ),
        (
            one_node("MaxUnpool", POOLED, {"shape": np.array([1, 1, 5, 5])}, kernel_shape=[2, 2], strides=[2, 2]),
            r"its output_shape is not what it pooled, found \[1, 1, 5, 5\]; allowed: \[1, 1, 4, 4\]",
        ),
    ],
)
def test_refused(model, sentence):
    with pytest.raises(ModelError, match=sentence):
        imported(model)
