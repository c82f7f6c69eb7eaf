"""Matrices that resize an axis, beside onnx's reference and torch."""

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
import torch
from onnx import helper
from onnx.reference import ReferenceEvaluator

from tvm_sparse.frontend.interpolation import exact_scale, positions, taps

COORDINATES = ("half_pixel", "half_pixel_symmetric", "align_corners", "asymmetric")


def reference(size, out, **attributes):
    """What onnx's reference evaluator makes of each unit vector of `size`."""
    node = helper.make_node("Resize", ["x", "", "", "z"], ["y"], axes=[0], **attributes)
    return ReferenceEvaluator(node, {"": 19}).run(None, {"x": np.eye(size), "z": np.array([out])})[0]


def matrix(size, out, mode, coordinates, **options):
    """That resizes an axis of `size` elements to `out`, (out, size)."""
    indices, weights = taps(positions(size, out, None, coordinates), mode, **options)
    found = np.zeros((out, size))
    np.add.at(found, (np.arange(out)[:, None], indices), weights)
    return found


@pytest.mark.parametrize(("mode", "coordinates"), [*product(("linear", "cubic"), COORDINATES)])
def test_matrices_are_the_reference_s(mode, coordinates):
    for size, out, antialias, excluded in product((1, 2, 5, 9), (1, 3, 7, 18), (0, 1), (0, 1)):
        options = {"cubic_coeff_a": -0.5, "antialias": antialias, "exclude_outside": excluded}
        wanted = reference(size, out, mode=mode, coordinate_transformation_mode=coordinates, **options)
        found = matrix(size, out, mode, coordinates, **options)
        np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-5)


@pytest.mark.parametrize(("mode", "aligned"), [*product(("linear", "cubic"), (False, True))])
def test_matrices_are_torch_s(mode, aligned):
    for size, out, antialias in product((3, 9), (1, 2, 7, 20), (False, True)):
        unit = torch.eye(size, dtype=torch.float64)[:, None, :, None].expand(-1, -1, -1, 3)
        wanted = torch.nn.functional.interpolate(
            unit, (out, 3), mode=f"bi{mode}", align_corners=aligned, antialias=antialias
        )
        coordinates = ("align_corners" + "_antialias" * antialias) if aligned else "half_pixel"
        coefficient = -0.5 if antialias else -0.75
        options = {"cubic_coeff_a": coefficient, "antialias": antialias, "exclude_outside": antialias}
        found = matrix(size, out, mode, coordinates, **options)
        np.testing.assert_allclose(found.T, wanted[:, 0, :, 0].numpy(), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("mode", "nearest"),
    [
        ("round_prefer_floor", [0, 0, 1, 2, 2, 3]),
        ("round_prefer_ceil", [0, 1, 1, 2, 3, 3]),
        ("floor", [0, 0, 1, 1, 2, 3]),
        ("ceil", [0, 1, 2, 2, 3, 3]),
    ],
)
def test_nearest_elements_of_ties_are_exact(mode, nearest):
    # Positions -1/6, 1/2, 7/6, 11/6, 5/2, 19/6.
    where = positions(4, 6)
    assert where.start == Fraction(-1, 6)
    assert where.nearest(mode).tolist() == nearest


def test_positions_on_an_element_are_not_left_of_it():
    # 3 of them are three times 1 / float32(1 / 3), which is below 9.
    scale = exact_scale(9, 3, np.float32(1 / 3))
    assert positions(9, 3, scale, "asymmetric").nearest("floor").tolist() == [0, 3, 6]
    assert exact_scale(9, 15, np.float32(1.7)) == Fraction(float(np.float32(1.7)))


def test_positions_of_any_scale_are_exact():
    # In double precision the fourth is 2.
    scale = 2 + Fraction(1, 2**90)
    assert positions(10, 20, scale, "asymmetric").floors().tolist() == [(i - (i > 0)) // 2 for i in range(20)]
