"""Regions of any size and place are averaged as ONNX Runtime does, those that it takes hours for or refuses too."""

from functools import partial

import numpy as np
import pytest
import tvm
from gpu_functions import computing, emulated, scheduled
from onnx_nodes import one_node, runtime
from tvm import relax
from zoo import UNOPTIMISED, run_relax

import tvm_sparse
from tvm_sparse.compiler.gpu_loops.default_schedules import default_schedules, schedule_rest
from tvm_sparse.compiler.relax_pipeline import own_functions
from tvm_sparse.compiler.rewriting.guard_addresses import guard_addresses

IMAGE = np.random.default_rng(0).standard_normal((2, 2, 7, 8)).astype(np.float32)
ODD = [[0, 0, 1e5, 3], [-1e30, 0, 1e30, 9], [0, 0, 3e9, 3e9], [5, 5, 1, 1], [5, 5, -1e30, -1e30], [2, 2, 2, 2]]


def align(regions, **attributes):
    """A RoiAlign for `regions`, its inputs, and what is compiled of it."""
    regions = np.asarray(regions, np.float32)
    inputs = {"x": IMAGE, "regions": regions, "batch": np.arange(len(regions)) % 2}
    model = one_node("RoiAlign", inputs, opset=16, output_height=2, output_width=3, **attributes)
    return model, inputs


def computed(path, model, inputs):
    path.write_bytes(model.SerializeToString())
    return np.asarray(tvm_sparse.compile(path, target=UNOPTIMISED, compare=False)(*inputs.values()))


@pytest.mark.parametrize("coordinates", ["half_pixel", "output_half_pixel"])
@pytest.mark.parametrize("samples", [0, 2])
def test_regions_are_those_of_onnx_runtime(coordinates, samples, tmp_path):
    rng = np.random.default_rng(1)
    middle, size = rng.uniform(-30, 40, (60, 2)), rng.choice([0, 0.1, 1, 5, 30, 300], (60, 2))
    regions = np.concatenate([middle - size / 2, middle + size / 2], 1)
    made = align(regions, coordinate_transformation_mode=coordinates, sampling_ratio=samples, spatial_scale=0.5)
    expected = runtime(*made)
    np.testing.assert_allclose(computed(tmp_path / "m.onnx", *made), expected, atol=1e-5)


@pytest.mark.parametrize("coordinates", ["half_pixel", "output_half_pixel"])
def test_however_far_they_reach(coordinates, tmp_path):
    """A sample counts by how many there are: of a region a million images wide next to nothing is left."""
    made = align(ODD, coordinate_transformation_mode=coordinates)
    found = computed(tmp_path / "m.onnx", *made)
    finished = runtime(*align(ODD[:1], coordinate_transformation_mode=coordinates))
    np.testing.assert_allclose(found[:1], finished, atol=1e-6)
    assert np.abs(found[1:3]).max() < 1e-6
    small = runtime(*align([[9, 9, 9, 9], *ODD[3:]], coordinate_transformation_mode=coordinates))
    np.testing.assert_allclose(found[3:], small[1:], atol=1e-6)


def test_a_region_that_is_not_finite_gives_nan(tmp_path):
    odd = [[np.nan, 0, 5, 5], [0, 0, 5, np.inf], [-np.inf, -np.inf, np.inf, np.inf]]
    found = computed(tmp_path / "m.onnx", *align([[0, 0, 4, 4], *odd]))
    assert np.isnan(found[1:]).all() and np.isfinite(found[0]).all()


@pytest.mark.parametrize("aligned", [True, pytest.param(False, marks=pytest.mark.exhaustive)])
def test_a_gpu_does_the_same(aligned):
    columns = [np.zeros((len(ODD) + 1, 1)), np.asarray([[1, 2, 5, 7], *ODD])]
    regions = np.concatenate(columns, 1).astype(np.float32)
    align_them = partial(relax.op.vision.roi_align, pooled_size=(2, 3), spatial_scale=1.0, aligned=aligned)
    module = computing(align_them, IMAGE.shape, regions.shape)
    passes = [guard_addresses, default_schedules(), schedule_rest]
    (func,) = scheduled(own_functions(is_cpu=False)(module), tvm.transform.Sequential(passes))
    found, _ = emulated(func, {"x0": IMAGE, "x1": regions}, (len(regions), 2, 2, 3))
    (expected,) = run_relax(own_functions(is_cpu=True)(module), IMAGE, regions)
    np.testing.assert_allclose(found, expected, atol=1e-6)
