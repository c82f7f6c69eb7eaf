"""Building kernels: what LLVM's optimiser breaks is built at a lower level."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from random_convolutions import random_weight
from tvm.target import Target

from tvm_sparse.codegen import lowering
from tvm_sparse.conv import reference
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.schedules.lookup import make_kernel
from tvm_sparse.target.compatibility import why_not_here

# LLVM 22's SLP vectoriser breaks the dense kernel of this convolution, for processors with AVX2 but not AVX-512.
SPEC = ConvSpec(
    1, 3, 33, 12, 6, 1, 7, stride=(2, 2), padding=(1, 1, 5, 0), dilation=(2, 2), groups=3, bias=True, residual=True
)
AVX2 = Target({"kind": "llvm", "num-cores": 1, "mcpu": "x86-64-v3"})
NAME = "dense_cpu:rows2x7-block"


@pytest.fixture
def weight() -> np.ndarray:
    return random_weight(SPEC, 0.5, "unstructured", 0, integers=False)


def test_code_that_llvm_breaks_is_built_at_a_lower_level(weight: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first attempt fails in LLVM's verifier; the second gives a kernel that is right."""
    levels, compile_ = [], tvm.compile

    def spy(module: tvm.IRModule, target: Target, **options: object) -> object:
        levels.append(target.attrs.get("opt-level"))
        return compile_(module, target, **options)

    monkeypatch.setattr(tvm, "compile", spy)
    kernel = make_kernel(NAME, SPEC, weight, AVX2)
    built = lowering.build(kernel.func, AVX2)
    assert levels == [None, 2], "LLVM no longer breaks this kernel: the second attempt may go"
    obstacle = why_not_here(AVX2)
    if obstacle:
        pytest.skip(f"built, but not run: {obstacle}")
    arguments = reference.random_arguments(SPEC, 0)
    x, *epilogue = (tvm.runtime.tensor(each) for each in arguments.values())
    y = tvm.runtime.tensor(np.full(SPEC.output_shape, np.nan, np.float32))
    built["main"](x, *map(tvm.runtime.tensor, kernel.constants), *epilogue, y)
    assert reference.reference(SPEC, weight=weight, **arguments).worst(y.numpy()) <= 1


def test_other_failures_are_not_tried_again(weight: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that says something else comes through at once."""
    calls = []

    def fail(*_: object, **__: object) -> None:
        calls.append(1)
        raise RuntimeError("no memory")

    monkeypatch.setattr(tvm, "compile", fail)
    with pytest.raises(RuntimeError, match="no memory"):
        lowering.build(make_kernel(NAME, SPEC, weight, AVX2).func, AVX2)
    assert len(calls) == 1
