"""Kernels for every architecture: right in the emulator, and accepted by nvcc."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from cuda_emulator import build_source, emulate
from parameters import sampled
from tvm.target import Target

from tvm_sparse.conv import reference
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.errors import UsageError
from tvm_sparse.schedules.lookup import find_space, make_kernel
from tvm_sparse.target.gpu import gpu_info

# Without clusters and early launches, and with both; all others are exhaustive.
FEW = ("sm_80", "sm_120")
SPEC = ConvSpec(1, 8, 10, 12, 8, 3, 3, padding=(1, 1, 1, 1), bias=True, relu=True)
# The others' tests are for sm_90.
ARCHITECTURES = ("sm_80", "sm_86", "sm_89", "sm_100", "sm_120")
SPLIT = "folded_cuda:split2-npq60"
SCHEDULES = ("folded_cuda:multistage-10x12-pixels1", "folded_cuda:npq60", SPLIT, "csr_cuda", "dense_cuda")


def weight() -> np.ndarray:
    """Small integers, a third of them not zero, so that sums are exact."""
    rng = np.random.default_rng(0)
    return np.where(rng.random(SPEC.weight_shape) < 0.3, rng.integers(-3, 4, SPEC.weight_shape), 0).astype(np.float32)


def target_of(arch: str) -> Target:
    """The first card of an architecture."""
    return Target({"kind": "cuda", "arch": arch}, host={"kind": "llvm"})


def schedules_of(arch: str) -> list[str]:
    """Those that an architecture has: blocks share input channels in clusters only."""
    return [name for name in SCHEDULES if name != SPLIT or gpu_info(target_of(arch)).has_clusters]


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++ to emulate CUDA code")
@pytest.mark.parametrize("arch", sampled(ARCHITECTURES, FEW))
def test_kernels_of_an_architecture_are_right(arch: str) -> None:
    """All elements, exactly; with asynchronous copies, clusters and early launches as the architecture has them."""
    target, arguments = target_of(arch), reference.random_arguments(SPEC, 5, integers=True)
    expected = reference.reference(SPEC, weight=weight(), **arguments).value
    for name in schedules_of(arch):
        kernel, y = make_kernel(name, SPEC, weight(), target), np.full(SPEC.output_shape, np.nan, np.float32)
        source, launches = build_source(kernel.func, target)
        assert (launches[-1].cluster > 1) == (name == SPLIT)
        assert ("griddepcontrol.wait" in source) == gpu_info(target).has_dependent_launch
        assert max(launch.shared for launch in launches) <= gpu_info(target).block_shared_bytes
        values = (arguments["x"], *kernel.constants, arguments["bias"], y)
        names = [parameter.name for parameter in kernel.func.params]
        emulate(source, launches, dict(zip(names, values, strict=True)))
        np.testing.assert_array_equal(y, expected, err_msg=name)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc on PATH to compile CUDA code")
@pytest.mark.parametrize("arch", sampled(ARCHITECTURES, FEW[:1]))
def test_nvcc_compiles_for_an_architecture(arch: str, tmp_path: Path) -> None:
    """Without spilled registers."""
    target, names = target_of(arch), schedules_of(arch)
    sources = [build_source(make_kernel(name, SPEC, weight(), target).func, target)[0] for name in names]
    for number, source in enumerate(sources):
        (tmp_path / f"kernel{number}.cu").write_text(source)
    files = [f"kernel{number}.cu" for number in range(len(sources))]
    command = ["nvcc", f"-arch={arch}", "-cubin", "-O1", "-Xptxas", "-v", *files]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert set(re.findall(r"(\d+) bytes spill", done.stderr)) == {"0"}


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_split_kernel_from_a_log_needs_clusters(arch: str) -> None:
    """Decisions come from logs of other GPUs too."""
    target, pattern = target_of(arch), SparsityPattern.of(weight())
    if gpu_info(target).has_clusters:
        assert find_space(SPLIT, SPEC, pattern, target).name == SPLIT
    else:
        with pytest.raises(UsageError, match="it has no variant 'split2-npq60'"):
            find_space(SPLIT, SPEC, pattern, target)
