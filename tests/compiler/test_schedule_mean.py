"""Means over an image's pixels have a schedule of their own on a GPU; here their code runs on the CPU."""

import numpy as np
import pytest
import torch
from gpu_functions import emulated, scheduled
from torch import nn
from tvm import relax

from tvm_sparse.compiler.gpu_loops.schedule_mean import schedule_mean
from tvm_sparse.compiler.rewriting.half_means import half_means
from tvm_sparse.conv.dtypes import FLOAT16, FLOAT32
from tvm_sparse.conv.reference import relative_difference
from tvm_sparse.cudnn.layout_change import LayoutChange
from tvm_sparse.frontend.model_source import ModelSource
from tvm_sparse.frontend.passes.folding.fold_constants import fold_constants
from tvm_sparse.frontend.passes.relax_graph import cleaned
from tvm_sparse.scheduling.cudnn_calls import layout_change_call


def with_means(module, x):
    """The functions of `module` that the pass has scheduled."""
    return scheduled(fold_constants(ModelSource(module).relax_module(x)), schedule_mean)


@pytest.mark.parametrize("shape", [(2, 12, 7, 7), (3, 5, 4, 4), (1, 9, 9, 15)])
def test_means_of_all_pixels(shape):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    (func,) = with_means(nn.AdaptiveAvgPool2d(1).eval(), x)
    y, _ = emulated(func, {func.params[0].name: x.numpy()}, (*shape[:2], 1, 1))
    assert relative_difference(y, x.double().mean((2, 3), keepdim=True).numpy()) < 1e-6


@pytest.mark.parametrize(
    "module", [nn.AvgPool2d(2), nn.MaxPool2d(4), nn.Softmax(dim=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1)]
)
def test_others_are_left_to_tvm(module):
    size = 32 if isinstance(module, nn.AdaptiveAvgPool2d) else 8
    assert with_means(module.eval(), torch.zeros(1, 4, size, size)) == []


def of_half(shape, layout, written, axes=(2, 3)):
    """A mean over `axes` of a tensor of `shape`, which was converted from NHWC if it is in that."""
    builder, order = relax.BlockBuilder(), (0, 2, 3, 1) if layout == "nhwc" else (0, 1, 2, 3)
    x = relax.Var("x", relax.TensorType([shape[each] for each in order], FLOAT16))
    with builder.function("main", [x]):
        with builder.dataflow():
            read = x
            if layout == "nhwc":
                change = builder.add_func(layout_change_call(LayoutChange(shape, FLOAT16, "nchw")), "change")
                read = builder.emit(relax.call_tir(change, [x], relax.TensorType(shape, FLOAT16)))
            wide = builder.emit(relax.op.mean(builder.emit(relax.op.astype(read, FLOAT32)), axes, len(written) == 4))
            output = builder.emit_output(relax.op.astype(wide, FLOAT16))
        builder.emit_func_output(output)
    return cleaned(half_means(builder.get()))


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize(("shape", "written"), [((2, 12, 7, 7), (2, 12, 1, 1)), ((3, 5, 4, 4), (3, 5))])
def test_means_in_half_precision_are_one_function(layout, shape, written):
    """What is added is widened on the way, from either layout."""
    (func,) = scheduled(of_half(shape, layout, written), schedule_mean)
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float16)
    given = np.ascontiguousarray(x.transpose(0, 2, 3, 1)) if layout == "nhwc" else x
    y, source = emulated(func, {func.params[0].name: given}, written)
    assert np.abs(y - x.astype(np.float64).mean((2, 3)).reshape(written)).max() <= 2.0**-11
    assert ("make_float4(0x0p+0f" in source) == (layout == "nhwc" and shape[1] % 4 == 0)


def test_means_of_other_axes_are_left():
    module = of_half((2, 12, 7, 7), "nchw", (2, 7), axes=(1, 3))
    assert [str(each.name_hint) for each in module.get_global_vars()] == ["main"]
