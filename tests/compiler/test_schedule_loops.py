"""What else a CPU model computes runs in all threads, and is what it was."""

import numpy as np
import pytest
import torch
import tvm
from torch import nn
from tvm import relax
from tvm.relax.backend.cpu_generic import pipeline

from tvm_sparse.compiler.cpu_loops.schedule_loops import schedule_loops
from tvm_sparse.frontend.model_source import ModelSource
from tvm_sparse.frontend.passes.folding.fold_constants import fold_constants
from tvm_sparse.target.resolve import resolve_target

TARGET = resolve_target("llvm")


def legalized(module, x, *passes):
    relaxed = fold_constants(ModelSource(module).relax_module(x))
    with TARGET:
        return tvm.transform.Sequential([*pipeline.legalize_passes(TARGET), *passes])(relaxed)


def scheduled(module, x):
    """The functions of `module` that the pass has scheduled."""
    functions = [func for _, func in legalized(module, x, schedule_loops).functions_items()]
    return [func for func in functions if "tirx.is_scheduled" in (func.attrs or {})]


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.MaxPool2d(3, 2, 1), (2, 16, 57, 40)),
        (nn.AvgPool2d(3, 2, 1), (1, 32, 41, 41)),
        (nn.Sequential(nn.AvgPool2d(2), nn.ReLU()), (2, 16, 64, 64)),
        (nn.AdaptiveAvgPool2d(1), (4, 64, 16, 16)),
        (nn.Softmax(dim=1), (64, 1000)),
        (nn.LayerNorm(96), (1, 400, 96)),
        (nn.GELU(), (1, 8, 70, 70)),
        (nn.Upsample(scale_factor=2), (1, 8, 60, 60)),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, nn.Module) else "",
)
def test_results_are_the_same(module, shape):
    module, x = module.eval(), torch.randn(shape, generator=torch.Generator().manual_seed(0))
    functions = scheduled(module, x)
    assert functions and all("T.parallel" in func.script() for func in functions)
    built = relax.VirtualMachine(tvm.compile(legalized(module, x, schedule_loops), TARGET), tvm.cpu())
    found = built["main"](tvm.runtime.tensor(x.numpy()))
    found = found.numpy() if isinstance(found, tvm.runtime.Tensor) else found[0].numpy()
    np.testing.assert_allclose(found, module(x).detach().numpy(), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(("module", "shape"), [(nn.MaxPool2d(2), (1, 4, 8, 8)), (nn.ReLU(), (1 << 16,))])
def test_little_work_and_single_loops_stay_as_they_are(module, shape):
    assert scheduled(module.eval(), torch.zeros(shape)) == []
