"""Exponentials, sigmoids, tanh and erf by arithmetic: as exact as float32 is, at the ends of its range too."""

import math

import numpy as np
import pytest
import torch
import tvm
from torch import nn
from tvm import relax

import tvm_sparse
from tvm_sparse.compiler.build_plan import compiled_module
from tvm_sparse.compiler.cpu_loops.vector_exponentials import LEAST, MOST
from tvm_sparse.target.resolve import resolve_target


def computed(operator: str, x: np.ndarray, threads: int = 1) -> np.ndarray:
    """The operator of Relax, of each element, as a model computes it."""
    builder, var = relax.BlockBuilder(), relax.Var("x", relax.TensorType(x.shape, str(x.dtype)))
    with builder.function("main", [var]):
        with builder.dataflow():
            result = builder.emit_output(getattr(relax.op, operator)(var))
        builder.emit_func_output(result)
    executable = compiled_module(builder.get(), resolve_target({"kind": "llvm", "num-cores": threads}))
    return relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()


def expected(operator: str, x: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64)
    with np.errstate(over="ignore"):
        if operator == "sigmoid":
            return 1 / (1 + np.exp(-x))
        return np.array([math.erf(each) for each in x]) if operator == "erf" else getattr(np, operator)(x)


@pytest.mark.parametrize("operator", ["exp", "sigmoid", "tanh", "erf"])
def test_numbers_are_right(operator):
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(-85, 85, 40_000), rng.uniform(-1, 1, 10_000)]).astype(np.float32)
    found, right = computed(operator, x.reshape(5, 100, 100), threads=2).ravel(), expected(operator, x)
    assert np.max(np.abs(found - right) / right) < 4 * 2.0**-23


@pytest.mark.parametrize("operator", ["exp", "sigmoid", "tanh", "erf"])
def test_the_ends_of_the_range_are_right(operator):
    x = np.array([np.nan, np.inf, -np.inf, 0, -0.0, 200, -200, MOST, LEAST, 88.5, -87.5, 1e-30], np.float32)
    with np.errstate(over="ignore"):
        found, right = computed(operator, x), expected(operator, x).astype(np.float32)
    assert np.allclose(found, right, rtol=1e-6, atol=1.2e-38, equal_nan=True)
    assert np.isnan(found[0]) and np.isinf(found[1]) == np.isinf(right[1]) and (found[2] == 0) == (right[2] == 0)


def test_other_types_are_left_alone():
    x = np.linspace(-20, 20, 999)
    assert np.allclose(computed("exp", x), np.exp(x), rtol=1e-14)


def test_activations_and_softmax_agree_with_torch():
    model = nn.Sequential(
        nn.Conv2d(4, 8, 3), nn.SiLU(), nn.GELU(), nn.Conv2d(8, 8, 1), nn.Sigmoid(), nn.Softmax(1)
    ).eval()
    x = torch.randn(2, 4, 20, 20)
    found = np.asarray(tvm_sparse.compile(model, x, target="llvm")(x))
    assert np.allclose(found, model(x).detach().numpy(), rtol=1e-5, atol=1e-6)
