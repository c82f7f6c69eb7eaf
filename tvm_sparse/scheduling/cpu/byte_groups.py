"""Channels in fours, and in groups: convolutions side by side, each of few groups that are computed as one.

An image of several parts lies as so many images of one.
"""

from dataclasses import replace

import numpy as np

from tvm_sparse.conv.codes import FOUR
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.space import divisors

# Filters of a part, at least; of more, maps of 56x56 take up to 1.5 times as long, and of fewer 7x7 a little longer.
LEAST_FILTERS = 16


def of_fours(spec: ConvSpec) -> ConvSpec:
    """The convolution of a part whose channels are the fours of channels of `spec`; its images are parts of images."""
    parts = parts_of(spec)
    return replace(spec, n=spec.n * parts, c=-(-spec.c // parts // FOUR), k=spec.k // parts, groups=1, least=1)


def parts_of(spec: ConvSpec) -> int:
    """As many as have filters enough, and channels and filters in fours; else one."""
    found = (
        parts
        for parts in reversed(divisors(spec.groups))
        if spec.c // parts % FOUR == spec.k // parts % FOUR == 0 and spec.k // parts >= LEAST_FILTERS
    )
    return next(found, 1)


def joined_weight(spec: ConvSpec, weight: np.ndarray) -> np.ndarray:
    """A weight (K, C / groups, R, S) as (K, C / parts, R, S), with zeros, which cost nothing, between groups."""
    joined, (k, c, r, s) = spec.groups // parts_of(spec), weight.shape
    found = np.zeros((spec.groups, k // spec.groups, joined, c, r, s), weight.dtype)
    group = np.arange(spec.groups)
    found[group, :, group % joined] = weight.reshape(spec.groups, -1, c, r, s)
    return found.reshape(k, joined * c, r, s)
