"""Convolution over runs whose input channels are divided between thread blocks.

At batch 1 a small map is one or two runs of pixels, and the only way to more thread blocks is fewer output channels for
each of them. But every block stages all input channels and loads nearly every input, whatever its number of output
channels: 256x256x3x3 on 14x14 maps as 128 blocks of two output channels is 34 MB of copies. As 128 blocks of eight
output channels and a quarter of the input channels it is 8 MB, with the same number of multiply-adds a block.
"""

from __future__ import annotations

import operator
from functools import reduce

from tvm import te, tirx

from tvm_sparse.conv.conv2d import WEIGHT, arguments_of, reduce_axes
from tvm_sparse.conv.conv2d_npq import Runs, packed_runs, product, written_in_place
from tvm_sparse.conv.spec import ConvSpec


def conv2d_split(spec: ConvSpec, runs: Runs, parts: int) -> tirx.PrimFunc:
    """The form with `parts` partial sums an output; `parts` divides the input channels of a group.

    Arguments as `compute.conv2d`. ``pack`` has axes (run, c, row, group of lanes, lane), ``conv`` and ``partial``, a
    copy of it, (part, run, k, pixel of the run); ``total``, which adds them up in order, and ``out`` (run, k, pixel).
    """
    arguments = arguments_of(spec)
    packed = packed_runs(spec, runs, arguments["x"])
    _, r, s = reduce_axes(spec)
    share = spec.weight_shape[1] // parts
    c = te.reduce_axis((0, share), "c")
    shape = (runs.count(spec), spec.k, runs.length)

    def conv_at(part: tirx.Expr, *at: tirx.Expr) -> tirx.Expr:
        tap = (part * share + c, r, s)
        return te.sum(product(spec, runs, packed, arguments[WEIGHT], at, tap), axis=[c, r, s])

    def total_at(*at: tirx.Expr) -> tirx.Expr:
        return reduce(operator.add, (partial(part, *at) for part in range(parts)))

    conv = te.compute((parts, *shape), conv_at, name="conv")
    partial = te.compute((parts, *shape), lambda *at: conv[at], name="partial")
    return written_in_place(arguments, te.compute(shape, total_at, name="total"), spec, runs)
