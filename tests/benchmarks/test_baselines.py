"""The baselines against the float64 reference: on the CPU through torch, Escort's kernels emulated, all on a GPU."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import native_library
import numpy as np
import pytest
import torch
from cuda_emulator import PRELUDE

from benchmarks.baselines import Baseline, NotServed, all_baselines, cudnn, escort, escort_kernels, im2col
from benchmarks.baselines.base import settings
from benchmarks.references import error_of
from tvm_sparse.conv import reference
from tvm_sparse.conv.sparsity import digest
from tvm_sparse.conv.spec import ConvSpec

SPECS = {
    "padded": ConvSpec(3, 4, 9, 7, 6, 3, 3, padding=(1, 1, 1, 1)),
    "unpadded": ConvSpec(2, 2, 12, 12, 4, 5, 5),
    "strided": ConvSpec(1, 6, 11, 14, 8, 3, 5, stride=(2, 3), padding=(1, 2, 1, 2)),
    "dilated": ConvSpec(2, 2, 13, 12, 2, 3, 2, dilation=(2, 3), padding=(2, 3, 2, 3)),
    "asymmetric": ConvSpec(2, 4, 8, 10, 6, 4, 3, padding=(1, 0, 3, 2)),
    "grouped": ConvSpec(2, 8, 9, 9, 4, 3, 3, padding=(1, 1, 1, 1), groups=2),
    "pointwise": ConvSpec(5, 8, 6, 6, 10, 1, 1),
    "wide": ConvSpec(9, 2, 20, 37, 2, 3, 3, padding=(1, 1, 1, 1)),
}
CPU = torch.device("cpu")
LIBRARIES = [*cudnn.baselines(), *im2col.baselines()]


def name(baseline: Baseline) -> str:
    return f"{baseline.family} {baseline.variant}".strip()


def sparse_weight(spec: ConvSpec, density: float = 0.4) -> np.ndarray:
    rng = np.random.default_rng(1)
    weight = rng.standard_normal(spec.weight_shape) * (rng.random(spec.weight_shape) < density)
    weight[-1] = 0  # a dead filter, which no half keeps
    return weight.astype(np.float32)


def error(baseline: Baseline, spec: ConvSpec, device: torch.device, weight: np.ndarray | None = None) -> float:
    """Largest error as a fraction of what the baseline declares, of two calls on inputs one after the other."""
    prepared = baseline.prepare(spec, sparse_weight(spec) if weight is None else weight, device)
    worst = 0.0
    for seed in range(2):
        x = reference.random_arguments(spec, seed)["x"]
        y = prepared.store(prepared.bind(prepared.load(torch.from_numpy(x).to(device)))()).cpu().numpy()
        expected = reference.reference(prepared.spec, x[:, : prepared.spec.c], prepared.weight)
        assert y.shape == prepared.spec.output_shape and y.dtype == np.float32
        worst = max(worst, error_of(y, expected, baseline.tolerance))
    return worst


@pytest.mark.parametrize("shape", SPECS)
@pytest.mark.parametrize("baseline", LIBRARIES, ids=name)
def test_library_baselines_match_the_reference(baseline: Baseline, shape: str) -> None:
    spec = SPECS[shape]
    if baseline.family.startswith("half") and spec.groups > 1:
        with pytest.raises(NotServed, match="groups"):
            baseline.prepare(spec, sparse_weight(spec), CPU)
    else:
        assert error(baseline, spec, CPU) <= 1


def test_rounded_baselines_are_declared() -> None:
    """What is not float32 throughout says so, and names differ."""
    found = all_baselines()
    assert {each.family for each in found if not each.exact} == {
        "cudnn-tf32",
        "cudnn-fp16",
        "im2col-cublas-tf32",
        "half-channels-tf32",
        "half-filters-tf32",
        "half-both-tf32",
    }
    assert len({name(each) for each in found}) == len(found)
    assert {each.family for each in found if each.sparse} == {"im2col-cusparse", "escort", "escort-prepadded"}


def test_float16_is_really_rounded() -> None:
    """A float16 result differs from the float32 one by more than the element-wise bound."""
    spec = SPECS["padded"]
    x, weight = reference.random_arguments(spec, 0)["x"], sparse_weight(spec)
    prepared = cudnn.baseline("fp16", "nhwc").prepare(spec, weight, CPU)
    y = prepared.store(prepared.bind(prepared.load(torch.from_numpy(x)))())
    assert reference.reference(spec, x, weight).worst(y.numpy()) > 1


def test_settings_are_put_back() -> None:
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_tf32
    with pytest.raises(RuntimeError), settings(matmul, allow_tf32=not before):
        assert matmul.allow_tf32 is not before
        raise RuntimeError
    assert matmul.allow_tf32 is before
    flags = [getattr(torch.backends.cudnn, flag) for flag in ("enabled", "benchmark", "deterministic", "allow_tf32")]
    error(cudnn.baseline("tf32", "nchw"), SPECS["padded"], CPU)
    assert flags == [
        getattr(torch.backends.cudnn, flag) for flag in ("enabled", "benchmark", "deterministic", "allow_tf32")
    ]


def test_halves_compute_half() -> None:
    spec = SPECS["padded"]
    for cut, (c, k) in {"channels": (2, 6), "filters": (4, 3), "both": (2, 3)}.items():
        prepared = cudnn.halved(cut, cudnn.baseline("fp32", "nchw")).prepare(spec, sparse_weight(spec), CPU)
        assert (prepared.spec.c, prepared.spec.k) == (c, k)
        assert prepared.weight_bytes == 4 * c * k * 9


@pytest.mark.parametrize(
    ("baseline", "change", "reason"),
    [
        (cudnn.halved("channels", cudnn.baseline("fp32", "nchw")), {"c": 1}, "1 channels"),
        (cudnn.halved("both", cudnn.baseline("fp32", "nchw")), {"k": 5}, "5 filters"),
        (cudnn.baseline("fp32", "nchw"), {"bias": True}, "without bias"),
        (im2col.cublas("unfold"), {"relu": True}, "without bias"),
        (im2col.cusparse("cnhw"), {"residual": True}, "without bias"),
        (escort.baseline(False, None, {}), {}, "nvcc"),
    ],
)
def test_reasons_not_to_serve(baseline: Baseline, change: dict[str, Any], reason: str) -> None:
    spec = ConvSpec.from_json({**SPECS["padded"].to_json(), **change})
    with pytest.raises(NotServed, match=reason):
        baseline.prepare(spec, sparse_weight(spec), CPU)


def test_compressed_rows_are_the_matrix() -> None:
    for spec in SPECS.values():
        weight = sparse_weight(spec)
        rows, columns, values = im2col.compressed_rows(spec, weight)
        matrix = np.zeros((spec.k, spec.c, spec.r, spec.s), np.float32)
        for k in range(spec.k):
            matrix[k].flat[columns[rows[k] : rows[k + 1]]] = values[rows[k] : rows[k + 1]]
        per_group = spec.c // spec.groups
        for k in range(spec.k):
            first = k // (spec.k // spec.groups) * per_group
            np.testing.assert_array_equal(matrix[k, first : first + per_group], weight[k])
        assert np.count_nonzero(matrix) == np.count_nonzero(weight)


# CUDA as C++ for the emulator: threads are fibres, launches run at once.
AS_CPP = """
#include <math.h>
#include <tuple>
#define __global__ static
#define __launch_bounds__(...)
#define __shared__ alignas(16) static
#define __ldg(pointer) (*(pointer))
struct dim3 { int x, y, z; dim3(int x, int y, int z) : x(x), y(y), z(z) {} };
typedef void* cudaStream_t;
static int cudaGetLastError() { return 0; }
static float __int_as_float(int bits) { float value; memcpy(&value, &bits, 4); return value; }
static dim3 blockDim(1, 1, 1), gridDim(1, 1, 1);
template <class Kernel, class... Arguments>
static void emulate(Kernel kernel, dim3 grid, dim3 block, Arguments... arguments) {
    static Kernel called;
    static std::tuple<Arguments...>* passed;
    std::tuple<Arguments...> all(arguments...);
    called = kernel, passed = &all, blockDim = block, gridDim = grid;
    int extents[] = {grid.x, grid.y, grid.z}, threads[] = {block.x, block.y, block.z};
    run_grid([] { std::apply(called, *passed); finished[current] = true; __syncthreads(); }, extents, threads, 1);
}
#define LAUNCH(kernel, grid, block, stream, ...) emulate(kernel, grid, block, __VA_ARGS__)
"""


@pytest.fixture(scope="module")
def emulated() -> escort_kernels.Kernels:
    """Escort's kernels on the CPU."""
    code = PRELUDE + AS_CPP + escort_kernels.SOURCE.read_text()
    return escort_kernels.Kernels(native_library.build(code, "-std=c++17", "-O1", "-ffp-contract=off"))


@pytest.mark.parametrize("shape", SPECS)
@pytest.mark.parametrize("prepadded", [False, True], ids=["escort", "escort-prepadded"])
def test_escort_matches_the_reference(emulated: escort_kernels.Kernels, prepadded: bool, shape: str) -> None:
    baseline = escort.baseline(prepadded, emulated, {})
    if prepadded and not any(SPECS[shape].padding):
        with pytest.raises(NotServed, match="no padding"):
            baseline.prepare(SPECS[shape], sparse_weight(SPECS[shape]), CPU)
    else:
        assert error(baseline, SPECS[shape], CPU) <= 1


@pytest.mark.parametrize("launch", escort_kernels.LAUNCHES, ids=str)
def test_every_launch_of_escort(emulated: escort_kernels.Kernels, launch: escort_kernels.Launch) -> None:
    """More taps a filter than are staged at a time, more rows, columns and images than divide."""
    spec = ConvSpec(3, 130, 5, 19, 2, 3, 3, padding=(1, 1, 1, 1))
    weight = sparse_weight(spec, 1.0)
    assert np.count_nonzero(weight[0]) > 1024
    key = (spec, digest(weight))
    assert error(escort.baseline(False, emulated, {key: launch}), spec, CPU, weight) <= 1


def test_escort_refuses_what_it_was_not_compiled_for(emulated: escort_kernels.Kernels) -> None:
    spec = SPECS["padded"]
    weight = sparse_weight(spec)
    baseline = escort.baseline(False, emulated, {(spec, digest(weight)): escort_kernels.Launch(7, 7, 1, 1, False)})
    prepared = baseline.prepare(spec, weight, CPU)
    with pytest.raises(RuntimeError, match="not launched"):
        prepared.bind(prepared.load(torch.zeros(spec.input_shape)))()
    many = ConvSpec(70_000, 1, 2, 2, 2, 1, 1)
    with pytest.raises(NotServed, match="one launch"):
        baseline.prepare(many, np.ones(many.weight_shape, np.float32), CPU)


def test_the_structure_is_the_one_that_is_compiled() -> None:
    code = escort_kernels.SOURCE.read_text()
    struct = re.search(r"struct Geometry \{(.*?)\}", code, re.DOTALL).group(1)
    names = re.findall(r"\w+", struct.replace("int ", ""))
    assert names == [field for field, _ in escort_kernels.Geometry._fields_]
    shapes = re.findall(r"^    SHAPE\((.*)\)$", code, re.MULTILINE)
    assert [tuple(map(int, shape.split(","))) for shape in shapes] == list(escort_kernels.SHAPES)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc on PATH to compile CUDA code")
def test_escort_compiles_without_spills(tmp_path: Path) -> None:
    library = escort_kernels.build(tmp_path, "sm_90")
    assert hasattr(ctypes.CDLL(str(library)), "escort_convolve")
    command = ["nvcc", "-O3", "-arch=sm_90", "-cubin", "-Xptxas", "-v", "-o", str(tmp_path / "cubin")]
    report = subprocess.run([*command, str(escort_kernels.SOURCE)], capture_output=True, text=True, check=True).stderr
    assert set(re.findall(r"(\d+) bytes spill", report)) == {"0"}
    assert max(map(int, re.findall(r"Used (\d+) registers", report))) <= 64


@pytest.mark.gpu
@pytest.mark.parametrize("shape", SPECS)
def test_every_baseline_on_the_gpu(tmp_path: Path, shape: str) -> None:
    major, minor = torch.cuda.get_device_capability()
    device, spec = torch.device("cuda"), SPECS[shape]
    for baseline in all_baselines(escort_kernels.build(tmp_path, f"sm_{major}{minor}")):
        try:
            assert error(baseline, spec, device) <= 1, name(baseline)
        except NotServed:
            assert baseline.family.startswith(("half", "escort-prepadded")), name(baseline)


@pytest.mark.gpu
def test_every_launch_of_escort_on_the_gpu(tmp_path: Path) -> None:
    major, minor = torch.cuda.get_device_capability()
    kernels = escort_kernels.Kernels(escort_kernels.build(tmp_path, f"sm_{major}{minor}"))
    spec = ConvSpec(5, 130, 37, 41, 6, 3, 3, padding=(1, 1, 1, 1))
    weight = sparse_weight(spec)
    for launch in escort_kernels.LAUNCHES:
        baseline = escort.baseline(False, kernels, {(spec, digest(weight)): launch})
        assert error(baseline, spec, torch.device("cuda"), weight) <= 1, str(launch)
