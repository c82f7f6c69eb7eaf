"""Images are resized along rows and then along columns in vectors, and are what torch makes of them."""

import numpy as np
import pytest
import torch
import tvm
from parameters import by_turns
from torch import nn
from tvm import relax, tirx
from tvm.relax.backend.cpu_generic import pipeline

from tvm_sparse.compiler.build_plan import compiled_module
from tvm_sparse.compiler.cpu_loops.schedule_elements import schedule_elements
from tvm_sparse.compiler.relax_pipeline import own_functions
from tvm_sparse.frontend.model_source import ModelSource
from tvm_sparse.target.resolve import resolve_target


def imported(module: nn.Module, x: torch.Tensor) -> tvm.IRModule:
    return ModelSource(module.eval()).relax_module(x)


def computed(module: nn.Module, x: torch.Tensor) -> np.ndarray:
    found = relax.VirtualMachine(
        compiled_module(imported(module, x), resolve_target({"kind": "llvm", "opt-level": 0})), tvm.cpu()
    )["main"]
    result = found(tvm.runtime.tensor(x.numpy()))
    return (result if isinstance(result, tvm.runtime.Tensor) else result[0]).numpy()


def functions(module: tvm.IRModule) -> list[tirx.PrimFunc]:
    passes = [own_functions(is_cpu=True), *pipeline.legalize_passes(None), schedule_elements(16)]
    found = tvm.transform.Sequential(passes)(module).functions_items()
    return [func for _, func in found if isinstance(func, tirx.PrimFunc)]


@pytest.mark.parametrize(
    ("size", "corners"), by_turns([(56, 56), (7, 5), (32, 11), (14, 14), (3, 40)], [True, False], 2)
)
def test_bilinear_images_are_those_of_torch(size, corners):
    model, x = nn.Upsample(size, mode="bilinear", align_corners=corners), torch.randn(2, 3, 14, 14)
    np.testing.assert_allclose(computed(model, x), model(x).numpy(), rtol=1e-5, atol=1e-5)


def test_columns_are_vectors():
    model = nn.Upsample((64, 64), mode="bilinear")
    (func,) = functions(imported(model, torch.zeros(1, 3, 16, 16)))
    code = func.script()
    assert "tirx.is_scheduled" in func.attrs and code.count("T.sblock(") == 3 and "T.vectorized(" in code


def test_other_images_are_resized_as_before():
    """The nearest element is one of the input's."""
    model, x = nn.Upsample(scale_factor=2, mode="nearest"), torch.randn(1, 3, 8, 8)
    (func,) = functions(imported(model, x))
    assert "resize_rows" not in str(func.attrs) and func.script().count("T.sblock(") == 2
    assert np.array_equal(computed(model, x), model(x).numpy())
