"""Inputs that are written anew for tensor cores: the kernel, emulated, and the convolution of what it writes."""

import math
from dataclasses import replace

import numpy as np
import pytest
from cuda_emulator import build_source, emulate
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from random_convolutions import random_case

from tvm_sparse.conv import reference, staged_input
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.conv.staged_input import StagedInput
from tvm_sparse.conv.volumes import Volumes
from tvm_sparse.cudnn.plan import PRECOMP, Plan
from tvm_sparse.scheduling.cuda.library.staging import is_transposed
from tvm_sparse.scheduling.cudnn_calls import convolution_call, plan_of
from tvm_sparse.target.resolve import resolve_target

CUDA = resolve_target('{"kind":"cuda","arch":"sm_90"}')
SPEC = ConvSpec(2, 36, 7, 9, 8, 3, 3, padding=(1, 1, 1, 1))
POINTWISE = ConvSpec(3, 40, 9, 7, 12, 1, 1, stride=(2, 3))
UNEVEN = ConvSpec(2, 5, 8, 8, 4, 3, 3, stride=(2, 2), padding=(0, 1, 2, 0))
IMAGE = ConvSpec(1, 3, 11, 9, 8, 7, 7, stride=(2, 2), padding=(3, 3, 3, 3))
# All that the taps of a row read are channels of one pixel.
FILM = replace(IMAGE, c=9, k=64)
THIN = ConvSpec(6, 8, 7, 5, 4, 1, 1, stride=(2, 2), volumes=Volumes(5, 3, 1, 2))
VOLUMES = replace(FILM, n=4, volumes=Volumes(4, 4, 3, before=1))
DILATED = ConvSpec(1, 3, 11, 9, 8, 3, 3, stride=(2, 1), dilation=(2, 1), padding=(2, 0, 1, 0))
# No output reads its only pixel: every value is a zero that is known beforehand.
OUTSIDE = ConvSpec(3, 1, 1, 1, 12, 1, 1, stride=(2, 3), padding=(3, 2, 3, 0), dilation=(3, 1))
LARGEST = np.finfo(np.float32).max


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Rows in one pixel are tried of few outputs too."""
    monkeypatch.setattr(staged_input, "_LEAST_OUTPUTS", 1)


@pytest.mark.parametrize(("films", "is_in_one"), [(1, True), (0.5, False)])
def test_rows_are_one_pixel_where_there_are_many(monkeypatch, films, is_in_one):
    """As r3d_18 begins."""
    monkeypatch.undo()
    staged = StagedInput(replace(IMAGE, n=int(16 * films), c=9, h=112, w=112, k=64))
    assert staged.has_rows_in_one == is_in_one
    assert staged.shape[1:] == ((118, 56, 64) if is_in_one else (59, 59, 36))


def written(staged, x):
    """What the kernel shall write, (N, H, W, C), by the definition."""
    spec, (_, h, w, c) = staged.spec, staged.shape
    top, left = spec.padding[:2] if staged.pads else (0, 0)
    # Large enough that no phase of any pixel lies outside.
    below, right = (size * step + more for size, step, more in zip((h, w), staged.step, staged.phases, strict=True))
    padded = np.pad(x, ((0, 0), (0, 0), (top, below), (left, right)))
    phases = [
        padded[:, :, row :: staged.step[0], column :: staged.step[1]][:, :, :h, :w]
        for row in range(staged.phases[0])
        for column in range(staged.phases[1])
    ]
    values = np.concatenate(phases, axis=1)
    return np.pad(values.transpose(0, 2, 3, 1), ((0, 0), (0, 0), (0, 0), (0, c - values.shape[1])))


@pytest.mark.parametrize("least", [None, 2])
def test_the_convolution_of_what_is_written_is_the_same(monkeypatch, least):
    """Exactly, in integers; also where nothing speaks against rows in one pixel."""
    met = set()
    if least is not None:
        monkeypatch.setattr(staged_input, "_LEAST_IN_ONE", least)
        monkeypatch.setattr(staged_input, "_WRITTEN", 0)

    @settings(max_examples=150, derandomize=True)
    @given(st.data())
    def check(data):
        case = random_case(lambda options: data.draw(st.sampled_from(options)))
        assume(case.spec.groups == 1)
        spec = replace(case.spec, bias=False, residual=False, relu=False, relu_max=math.inf)
        staged = StagedInput(spec)
        met.add(staged.has_rows_in_one)
        rng = np.random.default_rng(0)
        x = rng.integers(-9, 10, spec.input_shape).astype("f4")
        weight = rng.integers(-9, 10, spec.weight_shape).astype("f4")
        read, own = written(staged, x).transpose(0, 3, 1, 2), staged.weight(weight).transpose(0, 3, 1, 2)
        assert read.shape == staged.read.input_shape and own.shape == staged.read.weight_shape
        found = reference.reference(staged.read, read, own).value
        assert np.array_equal(found, reference.reference(spec, x, weight).value), case

    check()
    assert met == {False, True}


@pytest.mark.parametrize(
    ("spec", "shape"),
    [
        # A stride's pixels become channels, a group of 4; a 1x1 convolution reads one of them only.
        (IMAGE, (1, 9, 8, 12)),
        (POINTWISE, (3, 5, 3, 40)),
        # As 64 channels for each of 4 taps they would be more than 9 times 32.
        (replace(IMAGE, c=32, r=3, s=3), (1, 11, 9, 32)),
        (DILATED, (1, 14, 9, 4)),
        (FILM, (1, 17, 5, 64)),
        (replace(FILM, k=2), (1, 9, 8, 36)),
        (SPEC, (2, 7, 9, 36)),
    ],
)
def test_strides_become_channels_where_that_is_less_to_multiply(spec, shape):
    assert StagedInput(spec).shape == shape


@pytest.mark.parametrize("layout", ["nchw", "nhwc", "ncdhw"])
@pytest.mark.parametrize("spec", [THIN, VOLUMES])
def test_the_gpu_reads_volumes_as_they_lie(spec, layout):
    """Of the maps that no image reads nothing, of those that there are none of zeros."""
    staged, volumes = StagedInput(spec, layout), spec.volumes
    func = convolution_call(Plan(staged.read, "nhwc", PRECOMP, "fused", tf32=True, staged=staged))
    maps = np.random.default_rng(0).standard_normal(spec.input_shape, "f4")
    found = np.full(staged.shape, np.nan, "f4")
    given_x = maps if layout == "nchw" else np.ascontiguousarray(maps.transpose(0, 2, 3, 1))
    if layout == "ncdhw":
        films = maps.reshape(-1, volumes.size, *maps.shape[1:])
        given_x = np.ascontiguousarray(films.transpose(0, 2, 1, 3, 4))
    emulate(*build_source(func, CUDA), {"x": given_x, "staged_x": found})
    assert np.array_equal(found, written(staged, volumes.expanded(maps, 1)))


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("spec", [SPEC, POINTWISE, UNEVEN, IMAGE, FILM, DILATED, OUTSIDE])
def test_the_gpu_writes_each_element_that_is_read(spec, dtype, layout):
    spec = replace(spec, dtype=dtype)
    staged = StagedInput(spec, layout)
    assert is_transposed(staged) == (layout == "nchw" and spec.c >= 32)
    func = convolution_call(Plan(staged.read, "nhwc", PRECOMP, "fused", tf32=True, staged=staged))
    assert plan_of(func).staged == staged
    source, launches = build_source(func, CUDA)
    x = reference.random_arguments(spec, 1)["x"]
    if dtype == "float32":
        special = [np.inf, -np.inf, LARGEST, -LARGEST, np.nan, np.uint32(0x7FFFFFFF).view("f4"), 1e-44, -0.0]
        x.flat[:8] = special[: x.size]
    found = np.full(staged.shape, np.nan, dtype)
    given_x = x if layout == "nchw" else np.ascontiguousarray(x.transpose(0, 2, 3, 1))
    emulate(source, launches, {"x": given_x, "staged_x": found})
    assert np.array_equal(found, written(staged, x), equal_nan=True)
