"""Types in which tensors are stored: what rounding to them costs, and that float32 keeps its names in logs."""

import io
import math
from dataclasses import replace

import numpy as np
import pytest

from tvm_sparse.conv import reference
from tvm_sparse.conv.dtypes import BFLOAT16, FLOAT16, HALVES
from tvm_sparse.conv.random_weights import normal_weight, weight_like
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.conv.storage import STORAGE, from_file, rounded, stored

SPEC = ConvSpec(1, 4, 6, 6, 3, 3, 3, padding=(1, 1, 1, 1), bias=True, residual=True)


def case(dtype):
    """A spec, a weight and arguments of that type."""
    spec = replace(SPEC, dtype=dtype)
    return spec, normal_weight(spec, 0.5, 0), reference.random_arguments(spec, 1)


def test_only_half_precision_is_named_in_the_key():
    assert not SPEC.key.endswith("float32")
    assert replace(SPEC, dtype=FLOAT16).key == f"{SPEC.key}-float16"


@pytest.mark.parametrize("dtype", STORAGE)
def test_a_spec_comes_back_from_json(dtype):
    spec = replace(SPEC, dtype=dtype)
    assert ConvSpec.from_json(spec.to_json()) == spec


@pytest.mark.parametrize("dtype", HALVES)
def test_half_precision_moves_half_of_the_bytes(dtype):
    assert 2 * replace(SPEC, dtype=dtype).traffic_bytes == SPEC.traffic_bytes


@pytest.mark.parametrize("dtype", HALVES)
def test_facts_of_a_type_are_those_of_its_numbers(dtype):
    storage, numbers = STORAGE[dtype], np.arange(1 << 16, dtype=np.uint16).view(dtype).astype(np.float64)
    positive = np.sort(numbers[np.isfinite(numbers) & (numbers > 0)])
    assert (storage.largest, storage.underflow) == (positive[-1], positive[0] / 2)
    # Neighbours from 1 on are two roundoffs apart.
    assert positive[np.searchsorted(positive, 1) + 1] == 1 + 2 * storage.roundoff


@pytest.mark.parametrize("dtype", HALVES)
def test_the_bound_admits_one_rounding_and_no_other_number(dtype):
    spec, weight, arguments = case(dtype)
    expected = reference.reference(spec, weight=weight, **arguments)
    y = stored(expected.value, dtype)
    assert 0.5 < expected.worst(y) <= 1
    wrong = y.copy()
    index = np.unravel_index(np.abs(expected.value).argmax(), y.shape)
    wrong[index] = y[index].astype(np.float64) * (1 + 4 * STORAGE[dtype].roundoff)
    assert expected.worst(wrong) > 1


def test_small_outputs_may_be_off_by_half_of_the_smallest_number():
    spec = ConvSpec(1, 1, 1, 1, 1, 1, 1, dtype=FLOAT16)
    x, weight = np.full(spec.input_shape, 2.0**-13, np.float16), np.full(spec.weight_shape, 3 * 2.0**-13, np.float32)
    expected = reference.reference(spec, x, weight)
    assert expected.worst(np.full(spec.output_shape, 0.0, np.float16)) > 1
    assert expected.worst(stored(expected.value, FLOAT16)) <= 1


def test_there_is_no_bound_where_the_type_overflows():
    spec = ConvSpec(1, 1, 1, 2, 1, 1, 1, dtype=FLOAT16)
    x, weight = np.array([[[[60000.0, 1.0]]]], np.float16), np.full(spec.weight_shape, 2, np.float32)
    expected = reference.reference(spec, x, weight)
    assert np.isinf(expected.bound).tolist() == [[[[True, False]]]]
    assert expected.worst(stored(expected.value, FLOAT16)) <= 1
    assert math.isinf(stored(expected.value, FLOAT16)[0, 0, 0, 0])


@pytest.mark.parametrize("dtype", HALVES)
def test_random_weights_have_numbers_of_the_type(dtype):
    spec = replace(SPEC, dtype=dtype)
    for weight in (normal_weight(spec, 0.3, 0), weight_like(spec, SparsityPattern.of(normal_weight(SPEC, 0.3, 0)))):
        assert weight.dtype == np.float32
        np.testing.assert_array_equal(weight, rounded(weight, dtype))


def test_arrays_come_back_from_a_file():
    array, file = stored(np.arange(5.0), BFLOAT16), io.BytesIO()
    np.savez(file, array=array)
    file.seek(0)
    found = from_file(np.load(file)["array"])
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)
