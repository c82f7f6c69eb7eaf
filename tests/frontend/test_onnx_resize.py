"""Resize with all of its attributes is what onnx's reference evaluator says."""

import numpy as np
import pytest
import zoo
from onnx_nodes import assert_right, imported, numbers, one_node, runtime
from parameters import sampled
from test_passes import operators

from tvm_sparse.errors import ModelError
from tvm_sparse.frontend.interpolation import positions

IMAGE, CROP = (1, 2, 5, 7), {"coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 7.0}


def resize(shape, scales=None, sizes=None, roi=None, opset=19, dtype=np.float32, **attributes):
    x = (10 * numbers(*shape)).astype(dtype)
    constants = {
        "roi": None if roi is None else np.float32(roi),
        "scales": None if scales is None else np.float32(scales),
        "sizes": None if sizes is None else np.array(sizes),
    }
    return one_node("Resize", {"x": x}, constants, opset, **attributes), {"x": x}


# fmt: off
RESIZES = {
    "nearest_ties": resize(IMAGE, sizes=[1, 2, 7, 10]),
    "nearest_ties_up": resize(IMAGE, sizes=[1, 2, 7, 10], nearest_mode="round_prefer_ceil"),
    "nearest_floor": resize(IMAGE, [1, 1, 2, 1.7], coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
    "nearest_ceil": resize(IMAGE, [1, 1, 0.6, 2], nearest_mode="ceil"),
    "nearest_aligned": resize(IMAGE, sizes=[1, 2, 11, 1], coordinate_transformation_mode="align_corners"),
    "nearest_symmetric": resize(IMAGE, [1, 1, 0.7, 2.3], coordinate_transformation_mode="half_pixel_symmetric"),
    "nearest_integers": resize(IMAGE, [1, 1, 2, 2], dtype=np.int64),
    "nearest_of_channels": resize((1, 3, 2, 2), [1, 2, 2, 2]),
    "nearest_line": resize((1, 2, 5), [1, 1, 3]),
    "nearest_volume": resize((1, 2, 3, 4, 2), [1, 1, 2, 1.5, 2]),
    "nearest_matrix": resize((5, 4), sizes=[7, 9]),
    "linear_rounded": resize(IMAGE, [1, 1, 1.7, 0.6], mode="linear"),
    "linear_aligned_to_one": resize(IMAGE, sizes=[1, 2, 1, 9], mode="linear",
                                    coordinate_transformation_mode="align_corners"),
    "linear_torch_to_one": resize(IMAGE, sizes=[1, 2, 1, 9], mode="linear",
                                  coordinate_transformation_mode="pytorch_half_pixel"),
    "linear_doubles": resize(IMAGE, [1, 1, 2, 2], mode="linear", dtype=np.float64),
    "linear_line": resize((1, 2, 5), [1, 1, 3], mode="linear"),
    "linear_volume": resize((1, 1, 3, 4, 2), sizes=[1, 1, 5, 3, 4], mode="linear"),
    "linear_smoothed": resize(IMAGE, sizes=[1, 2, 3, 2], mode="linear", antialias=1),
    "cubic": resize(IMAGE, [1, 1, 1.5, 2], mode="cubic", cubic_coeff_a=-0.5),
    "cubic_excluded": resize(IMAGE, [1, 1, 1.5, 0.8], mode="cubic", exclude_outside=1),
    "cubic_aligned": resize(IMAGE, sizes=[1, 2, 9, 3], mode="cubic", coordinate_transformation_mode="align_corners"),
    "cubic_smoothed": resize(IMAGE, sizes=[1, 2, 2, 9], mode="cubic", antialias=1, exclude_outside=1),
    "some_axes": resize(IMAGE, sizes=[10, 3], axes=[3, 2], mode="linear"),
    "not_larger": resize(IMAGE, sizes=[9, 9], axes=[2, 3], keep_aspect_ratio_policy="not_larger", mode="linear"),
    "not_smaller": resize(IMAGE, sizes=[9, 9], axes=[2, 3], keep_aspect_ratio_policy="not_smaller"),
    "cropped": resize(IMAGE, sizes=[1, 2, 4, 6], roi=[0, 0, 0.3, -0.25, 1, 1, 0.9, 0.85], mode="linear", **CROP),
    "cropped_axes": resize(IMAGE, sizes=[4, 1], roi=[0.4, 0.2, 1.1, 0.7], axes=[3, 2], **CROP),
    "same_sizes": resize(IMAGE, sizes=IMAGE),
}
# fmt: on


@pytest.mark.parametrize("name", sampled(RESIZES, [*RESIZES][::2]))
def test_resize(name):
    model, inputs = RESIZES[name]
    # The reference computes with cubic_coeff_a in float32.
    assert_right(model, inputs, tolerance=1e-4)


@pytest.mark.parametrize("attributes", [{}, {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}])
def test_whole_factors_stay_tvm_s(attributes):
    """Its code divides indices as integers, which is the fastest; half pixels are the same elements."""
    model, inputs = resize(IMAGE, [1, 1, 2, 3], **attributes)
    assert operators(imported(model)) == ["image.resize2d"]
    assert_right(model, inputs)


def test_linear_images_stay_tvm_s():
    model, inputs = resize(IMAGE, [1, 1, 2, 3], mode="linear", antialias=1)
    assert operators(imported(model)) == ["image.resize2d"]
    assert_right(model, inputs)


def test_a_factor_of_thirds_reads_the_elements_that_lie_there():
    """9 / float32(1/3) is less than 27, but float32(1/3) stands for 9 of 27."""
    model, inputs = resize(
        (27,), [1 / 3], mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"
    )
    assert positions(27, 9).out == 9
    assert_right(model, inputs, wanted=inputs["x"][::3])


def test_empty_sizes_are_none():
    model, inputs = resize(IMAGE, [1, 1, 2.5, 2], sizes=np.zeros(0, np.int64))
    assert_right(model, inputs, wanted=runtime(*resize(IMAGE, [1, 1, 2.5, 2])))


def test_old_forms():
    x = {"x": numbers(*IMAGE)}
    upsample = one_node("Upsample", x, {"scales": np.float32([1, 1, 1.5, 2])}, 9, mode="linear")
    (wanted,) = zoo.run_onnx(upsample, x["x"])
    assert_right(upsample, x, wanted=wanted)
    old = one_node("Resize", x, {"scales": np.float32([1, 1, 0.5, 2])}, 10)
    (wanted,) = zoo.run_onnx(old, x["x"])
    assert_right(old, x, wanted=wanted)


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (
            resize(IMAGE, [1, 1, 1.7, 2], mode="linear", coordinate_transformation_mode="align_corners"),
            r"node node: it resizes to a size that is no whole number, with align_corners, found a factor of 1\.7 for "
            r"5 elements; allowed: whole sizes; export it with sizes",
        ),
        (
            resize(IMAGE, [1, 1, 2, 2], roi=[0, 0, 0, 0, 1, 1, 1, 1], **CROP),
            "it crops and scales, found scales; allowed: sizes",
        ),
        (
            resize(IMAGE, [1, 1, 2, 2], mode="linear", dtype=np.int32),
            "it resizes int32 data, found linear; allowed: nearest; cast the data to float32 before it",
        ),
        (
            resize(IMAGE, sizes=[1, 2, 4, 6], roi=[0, 1], **CROP),
            r"node node: its attributes and inputs do not fit \(.*\), found Resize; export it again",
        ),
        (
            resize(IMAGE, [1, 1, 0.1, 2]),
            "it resizes axis 2, found 5 to 0 elements; allowed: 1 or more",
        ),
        (
            resize((1, 1, 2, 1), sizes=[1, 1, 2, 2**25], mode="linear"),
            "its output is too large, found 33554432 elements; allowed: 16777216",
        ),
    ],
)
def test_refused(model, sentence):
    with pytest.raises(ModelError, match=sentence):
        imported(model[0])


def test_sizes_that_are_computed_are_refused():
    x = {"x": numbers(*IMAGE), "roi": None, "scales": None, "sizes": np.array([1, 2, 9, 9])}
    with pytest.raises(ModelError, match="its input sizes is no constant, found sizes; allowed: a constant"):
        imported(one_node("Resize", x, opset=19))
