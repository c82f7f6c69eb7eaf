"""Small pools have a schedule of their own on a GPU; here their code runs on the CPU."""

import numpy as np
import pytest
import torch
from gpu_functions import computing, emulated, scheduled
from torch import nn
from tvm import relax

from tvm_sparse.compiler.gpu_loops.schedule_pool import schedule_pool
from tvm_sparse.conv.reference import relative_difference

MAX, AVERAGE = relax.op.nn.max_pool2d, relax.op.nn.avg_pool2d


def pooled(operator, shape, dtype="float32", after=lambda y: y, **options):
    """The functions, of a module that pools once, that the pass has scheduled."""
    module = computing(lambda x: after(operator(x, **options)), shape, dtype=dtype)
    return scheduled(module, schedule_pool)


@pytest.mark.parametrize(
    ("shape", "window", "stride", "padding", "ceil", "dtype"),
    [
        ((2, 12, 28, 28), 3, 1, 1, False, "float32"),
        ((1, 8, 15, 13), 3, 2, 0, True, "float32"),
        ((1, 8, 15, 13), 3, 2, 0, True, "float16"),
        ((2, 6, 16, 10), 2, 2, 0, False, "float16"),
        ((1, 5, 9, 7), 5, 1, 2, False, "float32"),
    ],
)
def test_maxima(shape, window, stride, padding, ceil, dtype):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(getattr(torch, dtype))
    expected = nn.functional.max_pool2d(x, window, stride, padding, ceil_mode=ceil).numpy()
    sizes = {"pool_size": (window,) * 2, "strides": (stride,) * 2, "padding": (padding,) * 4}
    for layout, order in (("NCHW", (0, 1, 2, 3)), ("NHWC", (0, 2, 3, 1))):
        taken, wanted = (np.ascontiguousarray(each.transpose(order)) for each in (x.numpy(), expected))
        (func,) = pooled(MAX, taken.shape, dtype, layout=layout, ceil_mode=ceil, **sizes)
        np.testing.assert_array_equal(emulated(func, {"x0": taken}, wanted.shape)[0], wanted)


@pytest.mark.parametrize(("layout", "order"), [("NCHW", (0, 1, 2, 3)), ("NHWC", (0, 2, 3, 1))])
def test_means_with_what_follows_them(layout, order):
    x = torch.randn((2, 8, 14, 14), generator=torch.Generator().manual_seed(0))
    expected = nn.functional.avg_pool2d(x.double(), 3, 1, 1).clamp(min=0).numpy().transpose(order)
    taken = np.ascontiguousarray(x.numpy().transpose(order))
    sizes = {"pool_size": (3, 3), "padding": (1, 1, 1, 1)}
    (func,) = pooled(AVERAGE, taken.shape, after=relax.op.nn.relu, layout=layout, count_include_pad=True, **sizes)
    assert relative_difference(emulated(func, {"x0": taken}, expected.shape)[0], expected) < 1e-6


@pytest.mark.parametrize("size", [6, 14])
def test_large_windows_are_left_to_tvm(size):
    assert pooled(MAX, (2, 8, 28, 28), pool_size=(size, size)) == []
