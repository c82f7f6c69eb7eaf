"""Small pools have a schedule of their own on a GPU; here their code runs on the CPU."""

import numpy as np
import pytest
import torch
import tvm
from cuda_emulator import build_source, emulate
from torch import nn
from tvm import relax
from tvm.relax.backend.cuda import pipeline
from tvm.target import Target

from tvm_sparse.compiler.schedule_pool import schedule_pool
from tvm_sparse.conv.reference import relative_difference

TARGET = Target({"kind": "cuda", "arch": "sm_90"})

MAX, AVERAGE = relax.op.nn.max_pool2d, relax.op.nn.avg_pool2d


def scheduled(operator, shape, dtype="float32", layout="NCHW", after=None, **options):
    """The functions, of a module that pools once, that the pass has scheduled."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, dtype))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(operator(x, layout=layout, **options))
            y = builder.emit(after(y)) if after else y
            output = builder.emit_output(y)
        builder.emit_func_output(output)
    with TARGET:
        module = tvm.transform.Sequential([*pipeline.legalize_passes(TARGET)[:-1], schedule_pool])(builder.get())
    return [func for _, func in module.functions_items() if "tirx.is_scheduled" in (func.attrs or {})]


def run(func, x, shape, dtype, folder):
    taken, out = func.params
    y = np.full(shape, np.nan, dtype)
    source, launches = build_source(func.with_attr("global_symbol", "main"), TARGET)
    emulate(source, launches, {taken.name: x, out.name: y}, folder)
    return y


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    ("shape", "window", "stride", "padding", "ceil"),
    [
        ((2, 12, 28, 28), 3, 1, 1, False),
        ((1, 8, 15, 13), 3, 2, 0, True),
        ((2, 6, 16, 10), 2, 2, 0, False),
        ((1, 5, 9, 7), 5, 1, 2, False),
    ],
)
def test_maxima(shape, window, stride, padding, ceil, dtype, tmp_path):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(getattr(torch, dtype))
    expected = nn.functional.max_pool2d(x, window, stride, padding, ceil_mode=ceil).numpy()
    options = {
        "pool_size": (window,) * 2, "strides": (stride,) * 2, "padding": (padding,) * 4, "ceil_mode": ceil,
    }  # fmt: skip
    for layout, order in (("NCHW", (0, 1, 2, 3)), ("NHWC", (0, 2, 3, 1))):
        taken, wanted = (np.ascontiguousarray(each.transpose(order)) for each in (x.numpy(), expected))
        (func,) = scheduled(MAX, taken.shape, dtype, layout, **options)
        folder = tmp_path / layout
        folder.mkdir()
        np.testing.assert_array_equal(run(func, taken, wanted.shape, dtype, folder), wanted)


@pytest.mark.parametrize(("layout", "order"), [("NCHW", (0, 1, 2, 3)), ("NHWC", (0, 2, 3, 1))])
def test_means_with_what_follows_them(layout, order, tmp_path):
    x = torch.randn((2, 8, 14, 14), generator=torch.Generator().manual_seed(0))
    expected = nn.functional.avg_pool2d(x.double(), 3, 1, 1).clamp(min=0).numpy().transpose(order)
    taken = np.ascontiguousarray(x.numpy().transpose(order))
    (func,) = scheduled(
        AVERAGE, taken.shape, layout=layout, after=relax.op.nn.relu,
        pool_size=(3, 3), padding=(1, 1, 1, 1), count_include_pad=True,
    )  # fmt: skip
    assert relative_difference(run(func, taken, expected.shape, "float32", tmp_path), expected) < 1e-6


@pytest.mark.parametrize("size", [6, 14])
def test_large_windows_are_left_to_tvm(size):
    assert scheduled(MAX, (2, 8, 28, 28), pool_size=(size, size)) == []
