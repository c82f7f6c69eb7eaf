"""Which rows and columns a convolution reads: checked against all places that it reads."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvm_sparse.conv.input_footprint import input_footprint
from tvm_sparse.conv.spec import ConvSpec


@given(
    *(st.integers(1, 4) for _ in range(4)),
    st.sampled_from([(1, 1), (1, 3), (3, 1), (3, 3)]),
    st.sampled_from([(1, 9), (13, 13)]),
)
def test_everything_read_is_in_the_footprint_and_no_coarser_one(
    st_h: int, st_w: int, dil_h: int, dil_w: int, kernel: tuple[int, int], size: tuple[int, int]
) -> None:
    r, s = kernel
    height, width = size[0] + (r - 1) * dil_h, size[1] + (s - 1) * dil_w
    spec = ConvSpec(1, 1, height, width, 1, r, s, stride=(st_h, st_w), dilation=(dil_h, dil_w))
    found = input_footprint(spec)
    for axis, outputs, taps in ((0, spec.out_h, r), (1, spec.out_w, s)):
        along = found[axis]
        read = {y * spec.stride[axis] + tap * spec.dilation[axis] for y in range(outputs) for tap in range(taps)}
        assert along.step == (math.gcd(*read) or 1)
        places = {y * along.stride + tap * along.dilation for y in range(outputs) for tap in range(taps)}
        assert {place * along.step for place in places} == read
        assert max(places) + 1 == along.span(outputs)


@pytest.mark.parametrize("kernel", [1, 3])
def test_a_dense_kernel_reads_everything(kernel: int) -> None:
    """And so does a stride that a window covers."""
    assert [axis.step for axis in input_footprint(ConvSpec(1, 1, 9, 9, 1, kernel, kernel))] == [1, 1]
    assert [axis.step for axis in input_footprint(ConvSpec(1, 1, 9, 9, 1, 3, 3, stride=(2, 2)))] == [1, 1]
