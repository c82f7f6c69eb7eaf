"""ConvSpec: shapes as torch computes them, what it refuses, and its JSON form."""

import json
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_convolutions import random_spec

from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.errors import ModelError

SPEC = ConvSpec(2, 4, 7, 9, 6, 3, 5, stride=(2, 1), padding=(0, 1, 2, 3), dilation=(1, 2), groups=2, bias=True)


@st.composite
def specs(draw):
    return random_spec(lambda options: draw(st.sampled_from(options)))


@settings(max_examples=100, derandomize=True)
@given(specs())
def test_shapes_are_those_of_torch(spec):
    top, left, bottom, right = spec.padding
    x = torch.nn.functional.pad(torch.zeros(spec.input_shape), (left, right, top, bottom))
    y = torch.nn.functional.conv2d(x, torch.zeros(spec.weight_shape), None, spec.stride, 0, spec.dilation, spec.groups)
    assert spec.output_shape == tuple(y.shape)
    assert spec.dense_flops == spec.sparse_flops(torch.zeros(spec.weight_shape).numel())


@settings(max_examples=100, derandomize=True)
@given(specs())
def test_symmetric_padding_gives_the_same_outputs(spec):
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(shape, generator=generator) for shape in (spec.input_shape, spec.weight_shape))
    top, left, bottom, right = spec.padding
    whole = torch.nn.functional.pad(x, (left, right, top, bottom))
    expected = torch.nn.functional.conv2d(whole, weight, None, spec.stride, 0, spec.dilation, spec.groups)
    if spec.symmetric_padding is not None:
        found = torch.nn.functional.conv2d(
            x, weight, None, spec.stride, spec.symmetric_padding, spec.dilation, spec.groups
        )
        torch.testing.assert_close(found, expected)
    elif (top, left) == (bottom, right):
        pytest.fail("padding that is symmetric already was not found")


@pytest.mark.parametrize(
    ("padding", "stride", "expected"),
    [
        ((1, 1, 1, 1), (1, 1), (1, 1)),
        ((0, 0, 1, 1), (1, 1), None),
        # The last row and column are not read.
        ((1, 1, 0, 0), (2, 2), (1, 1)),
        ((0, 0, 1, 1), (2, 2), None),
        ((1, 0, 1, 0), (1, 1), (1, 0)),
    ],
)
def test_symmetric_padding_by_hand(padding, stride, expected):
    assert ConvSpec(1, 1, 8, 8, 1, 3, 3, stride=stride, padding=padding).symmetric_padding == expected


def test_traffic_by_hand():
    spec = ConvSpec(2, 3, 8, 8, 5, 3, 3, residual=True)
    assert spec.traffic_bytes == 4 * (2 * 3 * 64 + 2 * (2 * 5 * 36))


@settings(max_examples=50, derandomize=True)
@given(specs())
def test_json_gives_the_same_spec_back(spec):
    assert ConvSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"n": 0}, "n is not usable, found 0; allowed: an integer of 1 or more"),
        ({"k": -6}, "k is not usable"),
        ({"h": 7.0}, "h is not usable"),
        ({"stride": (0, 1)}, "stride is not usable"),
        ({"stride": (1,)}, "stride is not usable"),
        ({"stride": (1, 1.5)}, "stride is not usable, found (1, 1.5); allowed: two integers of 1 or more"),
        ({"dilation": (1, 0)}, "dilation is not usable"),
        ({"padding": (1, 1)}, "padding is not usable"),
        ({"padding": (0, 0, 0, -1)}, "padding is not usable"),
        ({"groups": 4}, "channels do not split into the groups, found 4; allowed: a divisor of 4 and 6"),
        ({"dtype": "float64"}, "element type is not supported, found float64; allowed: float32, float16, bfloat16"),
        ({"least": 2}, "least is not usable, found 2; allowed: -255 to 0, or 1 for none"),
        ({"r": 11}, "the kernel is larger than the padded input, found output 0x5"),
    ],
)
def test_impossible_values_are_refused(changes, sentence):
    with pytest.raises(ModelError) as caught:
        replace(SPEC, **changes)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    "data", [None, [], "n", {}, {"n": 1}, {**SPEC.to_json(), "depth": 3}, {**SPEC.to_json(), "n": "2"}]
)
def test_other_json_is_refused(data):
    with pytest.raises(ModelError):
        ConvSpec.from_json(data)


def test_the_key_tells_specs_apart():
    changes = [
        {},
        {"n": 3},
        {"c": 8},
        {"h": 8},
        {"w": 10},
        {"k": 8},
        {"r": 2},
        {"s": 4},
        {"stride": (1, 2)},
        {"padding": (1, 0, 2, 3)},
        {"dilation": (2, 1)},
        {"groups": 1},
        {"bias": False},
        {"residual": True},
        {"relu": True},
        {"least": 0},
        {"least": -3},
    ]
    assert len({replace(SPEC, **each).key for each in changes}) == len(changes)


@pytest.mark.parametrize(
    "change", [{"n": 2**24}, {"padding": (2**14, 9, 2**14, 2**20)}, {"k": 2**24, "padding": (9, 9, 9, 9)}]
)
def test_tensors_beyond_32_bit_indices_are_refused(change):
    with pytest.raises(ModelError, match=r"is too large, found \d+ elements; allowed: up to 2147483647"):
        replace(SPEC, groups=1, **change)
