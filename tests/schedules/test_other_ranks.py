"""Kernels of the convolutions that lines, volumes and transposed ones become, on both targets, against float64."""

import random
import shutil
from dataclasses import replace

import numpy as np
import pytest
from cuda_emulator import run_emulated
from other_ranks import CLASSES, random_layers
from random_convolutions import Case
from tvm.target import Target

import tvm_sparse as ts
from tvm_sparse.conv import reference
from tvm_sparse.frontend.prepare import prepare
from tvm_sparse.schedules.lookup import family_of, spaces_of
from tvm_sparse.scheduling.kernel import apply_decisions

CUDA = Target({"kind": "cuda", "arch": "sm_90"}, host={"kind": "llvm"})
SCHEDULES = ["folded_cuda", "csr_cuda", "dense_cuda"]
# Of each kind 500 layers; the first seeds are of the frontend's tests.
SEEDS, LAYERS = range(101, 126), 20
pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.parametrize("kind", CLASSES),
    pytest.mark.parametrize("seed", SEEDS),
]


def test_compiled_on_a_cpu(kind, seed):
    model, inputs = random_layers(kind, seed, LAYERS)
    target = {"kind": "llvm", "opt-level": 0, "num-cores": 1}
    found = ts.compile(model, tuple(inputs), target=target)(*(x.numpy() for x in inputs))
    wanted = model.double()(*(x.double() for x in inputs))
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other.detach().numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++ to emulate CUDA code")
def test_emulated_for_a_gpu(kind, seed):
    """Operators around kernels are the same on all targets; maps of volumes are read in place where they can be."""
    model, inputs = random_layers(kind, seed, LAYERS)
    choose = random.Random(seed).choice
    for layer in prepare(model, tuple(inputs)).layers:
        family = family_of(choose(SCHEDULES))
        spec = family.reads_volumes(replace(layer.spec, volumes=layer.volumes), None)
        case = Case(spec, layer.weight, seed, integers=False)
        space = choose(spaces_of(spec, layer.pattern, CUDA, [family.name])[0])
        y = run_emulated(case, apply_decisions(space, layer.weight), CUDA)
        arguments = reference.random_arguments(spec, seed, False)
        assert case.error(arguments, y) <= 1, f"{space.name}, {case!r}"
