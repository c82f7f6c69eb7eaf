"""Kernels of linear layers: every schedule on random ones, their arrays, limits as sentences, and a GPU's emulated."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import tvm
from cuda_emulator import build_source, kernels, run_emulated
from parameters import by_turns, sampled
from random_convolutions import Case, random_images_case, random_kernel, random_linear_case, random_weight
from tvm.target import Target

from tvm_sparse.codegen import lowering
from tvm_sparse.conv import reference
from tvm_sparse.conv.conv2d_product import is_linear
from tvm_sparse.conv.random_weights import normal_weight
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.logs.tuning_log import TuningLog
from tvm_sparse.schedules import linear_cpu, linear_cuda
from tvm_sparse.schedules.lookup import arithmetic_of, find_space, make_kernel, schedule_names, spaces_of
from tvm_sparse.scheduling.cuda.lane_sums import IMAGES
from tvm_sparse.scheduling.kernel import apply_decisions
from tvm_sparse.scheduling.space import WrittenSpace
from tvm_sparse.target.gpu import gpu_info
from tvm_sparse.target.resolve import resolve_target

CPU = resolve_target('{"kind":"llvm","opt-level":0,"num-cores":2}')
# Without LLVM's optimiser, which takes most of the time: kernels of other vectors than the host's, in which it differs.
AVX2 = resolve_target('{"kind":"llvm","mcpu":"x86-64-v3","num-cores":2,"opt-level":0}')
CUDA = Target({"kind": "cuda", "arch": "sm_90"}, host={"kind": "llvm"})
# Of each schedule.
CASES = {"linear_cpu": 10, "dense_cpu": 6, "csr_cpu": 4, "folded_cpu": 4}
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++ to emulate CUDA code")


def layer(n: int, c: int, k: int, **epilogue: bool) -> ConvSpec:
    """The spec of a linear layer."""
    return ConvSpec(n, c, 1, 1, k, 1, 1, **epilogue)


def pattern_of(spec: ConvSpec, density: float = 0.1) -> SparsityPattern:
    """Of a random weight."""
    return SparsityPattern.of(random_weight(spec, density, "unstructured", 0, integers=False))


@pytest.mark.parametrize("target", [CPU, AVX2], ids=["host", "avx2"])
@pytest.mark.parametrize("schedule", CASES)
@pytest.mark.parametrize("times", [1, pytest.param(4, marks=pytest.mark.exhaustive)])
def test_cpu_kernels_match_the_reference(times: int, schedule: str, target: Target) -> None:
    """By turns with default and random decisions; integers exactly."""
    for seed in range(times * CASES[schedule]):
        choose = random.Random(f"{seed} linear").choice
        case = random_linear_case(choose)
        spaces, reasons = spaces_of(case.spec, SparsityPattern.of(case.weight), target, [schedule])
        assert spaces, reasons
        each = choose(spaces)
        kernel = random_kernel(each, case.weight, choose) if seed % 2 else apply_decisions(each, case.weight)
        assert case.worst(kernel, target) <= 1, f"{each.name}, {case!r}"


@needs_compiler
@pytest.mark.parametrize("schedule", ["linear_cuda", "dense_cuda", "csr_cuda", "folded_cuda"])
@pytest.mark.parametrize("seed", sampled(range(6), range(2)))
def test_emulated_kernels_match_the_reference(schedule: str, seed: int) -> None:
    """By turns with default and random decisions; integers exactly."""
    choose = random.Random(f"{seed} linear cuda").choice
    case = random_linear_case(choose)
    found, reasons = spaces_of(case.spec, SparsityPattern.of(case.weight), CUDA, [schedule])
    # Those that are written by hand are emulated apart.
    spaces = [space for space in found if not isinstance(space, WrittenSpace)]
    assert spaces, reasons
    each = choose(spaces)
    kernel = random_kernel(each, case.weight, choose) if seed % 2 else apply_decisions(each, case.weight)
    y = run_emulated(case, kernel, CUDA)
    assert case.error(reference.random_arguments(case.spec, case.seed, case.integers), y) <= 1, f"{each.name}, {case!r}"


@pytest.mark.gpu
@pytest.mark.parametrize("schedule", ["linear_cuda", "linear_tensor_cuda", "dense_cuda"])
def test_kernels_match_the_reference_on_a_gpu(schedule: str) -> None:
    """Hundreds of random ones, outputs poisoned, and the layers of VGG16."""
    target, device = resolve_target("cuda"), tvm.cuda(0)
    cases = [random_linear_case(random.Random(f"{seed} linear gpu").choice) for seed in range(200)]
    cases += [random_images_case(random.Random(f"{seed} images gpu").choice) for seed in range(200)]
    for spec in (layer(1, 25088, 4096, bias=True, relu=True), layer(8, 4096, 4096), layer(64, 4096, 1000, bias=True)):
        cases.append(Case(spec, normal_weight(spec, 0.1, 0), 0, integers=False))
    found = [spaces_of(case.spec, SparsityPattern.of(case.weight), target, [schedule])[0] for case in cases]
    # Tensor cores serve float32 and many images alone; the layers of VGG16 for 64 images are among them.
    assert sum(map(bool, found)) >= (len(cases) if schedule != "linear_tensor_cuda" else 50)
    for number, (case, spaces) in enumerate(zip(cases, found, strict=True)):
        if not spaces:
            continue
        choose = random.Random(number).choice
        each = choose(spaces)
        kernel = random_kernel(each, case.weight, choose) if number % 2 else apply_decisions(each, case.weight)
        arguments = reference.random_arguments(case.spec, case.seed, case.integers)
        epilogue = [arguments[name] for name in ("bias", "residual") if name in arguments]
        y = tvm.runtime.tensor(np.full(case.spec.output_shape, np.nan, case.spec.dtype), device)
        arrays = [tvm.runtime.tensor(each, device) for each in (arguments["x"], *kernel.constants, *epilogue)]
        lowering.build(kernel.func, target)["main"](*arrays, y)
        device.sync()
        assert case.error(arguments, y.numpy(), arithmetic_of(each.name)) <= 1, f"{each.name}, {case!r}"


@pytest.mark.parametrize("target", [CPU, CUDA], ids=["cpu", "cuda"])
@pytest.mark.parametrize("spec", [layer(1, 64, 10), layer(1, 4096, 16), layer(64, 2048, 1000), layer(197, 512, 64)])
def test_every_schedule_serves_a_layer_or_says_why_not(spec: ConvSpec, target: Target) -> None:
    """The default decisions can be scheduled."""
    found, reasons = spaces_of(spec, pattern_of(spec), target)
    assert {each.schedule for each in found} | set(reasons) == set(schedule_names(target))
    assert {f"linear_{target.kind.name.replace('llvm', 'cpu')}"} <= {each.schedule for each in found}
    for each in found:
        for start in each.starts():
            assert each.obstacle_of(each.scheduled(start)) == ""


def test_limits_are_sentences() -> None:
    """A convolution of more pixels, padding, and images that no block can hold."""
    conv, padded = ConvSpec(1, 8, 4, 5, 8, 2, 2), ConvSpec(1, 8, 2, 2, 8, 4, 4, padding=(1, 1, 1, 1))
    for module, target in ((linear_cpu, CPU), (linear_cuda, CUDA)):
        for spec, sentence in (
            (conv, "12 pixels an output, at most 1; it is"),
            (padded, "padding (1, 1, 1, 1), and only"),
        ):
            _, reasons = spaces_of(spec, pattern_of(spec), target, [module.NAME])
            assert reasons[module.NAME].startswith(sentence)
    large = layer(1, 80_000, 4)
    _, reasons = spaces_of(large, pattern_of(large), CUDA, ["linear_cuda"])
    limit = gpu_info(CUDA).block_shared_bytes
    assert reasons["linear_cuda"] == f"an image needs 320016 bytes of shared memory and there are {limit}"
    huge = layer(35_700, 60_000, 2)
    _, reasons = spaces_of(huge, pattern_of(layer(1, 60, 2)), CPU, ["linear_cpu"])
    assert "exceeds 32-bit indices" in reasons["linear_cpu"]


@pytest.mark.parametrize(("inputs", "offsets"), [(1 << 16, "uint16"), ((1 << 16) + 1, "int32")])
def test_offsets_are_as_short_as_they_can_be(inputs: int, offsets: str) -> None:
    """Also the last input of the largest layer with short ones is read."""
    spec = layer(1, inputs, 3)
    weight = np.zeros(spec.weight_shape, np.float32)
    weight[0, 0], weight[1, -1], weight[2, 77] = 2, 3, 4
    kernel = make_kernel("linear_cpu:single", spec, weight, CPU)
    assert str(kernel.constants[1].dtype) == offsets
    assert Case(spec, weight, 1, integers=True).worst(kernel, CPU) == 0


@pytest.mark.parametrize(
    ("images", "variants"),
    [
        (1, ["single"]),
        (2, ["single", "images4x1"]),
        (5, ["images8x1", "single"]),
        (64, ["images16x4", "single"]),
        (197, ["images16x4", "images16x7", "single"]),
    ],
)
def test_vectors_are_as_wide_as_the_images_need(images: int, variants: list[str]) -> None:
    """On AVX-512, where a vector holds 16."""
    spec, target = layer(images, 32, 8), resolve_target('{"kind":"llvm","mcpu":"znver4","num-cores":1}')
    found, _ = spaces_of(spec, pattern_of(spec), target, ["linear_cpu"])
    assert [each.variant for each in found] == variants


def test_the_default_gives_every_thread_filters() -> None:
    """Blocks of filters are tasks of threads: at least two for each."""
    for images in (1, 64):
        spec = layer(images, 64, 1000)
        for threads, most in ((1, 256), (16, 31), (2000, 1)):
            target = resolve_target(f'{{"kind":"llvm","num-cores":{threads}}}')
            (start,) = find_space("linear_cpu", spec, pattern_of(spec), target).starts()
            assert start["filters"] <= most


def test_filled_rows_of_a_gpu_read_a_zero() -> None:
    """Rows are filled up to whole reads with weights of 0 at a place that holds 0, not at an input."""
    spec = layer(1, 10, 4)
    weight = np.zeros(spec.weight_shape, np.float32)
    weight[0, [1, 4, 9]], weight[2, :5], weight[3, 2] = 1, 2, 3
    values, places, reads = find_space("linear_cuda", spec, SparsityPattern.of(weight), CUDA).constants(weight)
    assert reads.tolist() == [0, 1, 1, 3, 4]
    assert values.shape == places.shape and len(values) >= 4 * reads[-1] and len(values) % 4 == 0
    np.testing.assert_array_equal(values[:16], np.ravel([1, 1, 1, 0, 2, 2, 2, 2, 2, 0, 0, 0, 3, 0, 0, 0]))
    np.testing.assert_array_equal(places[:16], np.ravel([1, 4, 9, 10, 0, 1, 2, 3, 4, 10, 10, 10, 2, 10, 10, 10]))


@needs_compiler
@pytest.mark.parametrize("images", [1, 11])
def test_infinity_passes_zeros_by_on_a_gpu(images: int) -> None:
    """What fills a row up is not multiplied with an input."""
    spec = layer(images, 40, 8)
    weight = random_weight(spec, 0.2, "unstructured", 3, integers=False)
    arguments = {"x": reference.random_arguments(spec, 0)["x"]}
    arguments["x"][0, 0] = np.inf
    kernel = make_kernel("linear_cuda", spec, weight, CUDA)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reference, "random_arguments", lambda *_: arguments)
        y = run_emulated(Case(spec, weight, 0, integers=False), kernel, CUDA)
    np.testing.assert_array_equal(np.isfinite(y[0, :, 0, 0]), weight[:, 0, 0, 0] == 0)
    assert np.isfinite(y[1:]).all()


def test_a_warp_reads_neighbouring_weights_in_wide_reads() -> None:
    """One launch, a warp for each filter and group of images, and no barrier but the one behind the copy."""
    spec = layer(IMAGES + 1, 512, 96)
    source, (launch,) = build_source(make_kernel("linear_cuda", spec, np.ones(spec.weight_shape), CUDA).func, CUDA)
    code = kernels(source)
    assert launch.block[0] == 32 and launch.grid[0] * launch.block[1] == 2 * 96
    assert len(re.findall(r"\*\(float4\*\)\(weight_ptr \+ 0\) = \*\(float4\*\)\(values_ptr", code)) == 1
    assert len(re.findall(r"\*\(ushort4\*\)\(place_ptr \+ 0\) = \*\(ushort4\*\)\(offsets_ptr", code)) == 1
    assert "*(float4*)(staged_ptr" in code
    assert code.count("__syncthreads()") == 1


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc on PATH to compile CUDA code")
@pytest.mark.parametrize(("schedule", "images"), by_turns(("linear_cuda", "dense_cuda"), (IMAGES, 1), 2))
def test_nvcc_compiles_a_kernel(schedule: str, images: int, tmp_path: Path) -> None:
    """Sums of all images are registers: nothing is kept in local memory."""
    spec = layer(images, 4096, 1000, bias=True, relu=True)
    source, _ = build_source(make_kernel(schedule, spec, normal_weight(spec, 0.1, 0), CUDA).func, CUDA)
    (tmp_path / "kernel.cu").write_text(source)
    command = ["nvcc", "-arch=sm_90", "-cubin", "-O3", "-Xptxas", "-v", "-o", "kernel.cubin", "kernel.cu"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert set(re.findall(r"(\d+) bytes (?:stack frame|spill)", done.stderr)) == {"0"}


def test_is_linear_is_about_pixels_not_names() -> None:
    """Squeeze-and-excitation's 1x1 convolutions of pooled maps are linear layers too."""
    assert is_linear(layer(3, 8, 8, bias=True))
    assert not is_linear(ConvSpec(1, 8, 1, 2, 8, 1, 1)) and not is_linear(ConvSpec(1, 8, 1, 1, 8, 1, 1, groups=2))
    assert not is_linear(ConvSpec(1, 8, 1, 1, 8, 3, 3, padding=(1, 1, 1, 1)))


@pytest.mark.exhaustive
def test_the_largest_layer_of_vgg16(tmp_path: Path) -> None:
    """10 million non-zeros: pattern, spaces, a record of a log and the kernel."""
    spec = layer(1, 25088, 4096, bias=True, relu=True)
    rng = np.random.default_rng(0)
    weight = rng.standard_normal(spec.weight_shape, np.float32)
    weight[rng.random(spec.weight_shape, np.float32) >= 0.1] = 0
    pattern = SparsityPattern.of(weight)
    found, reasons = spaces_of(spec, pattern, CPU)
    assert {each.schedule for each in found} == {"csr_cpu", "linear_cpu", "dense_cpu"}
    assert reasons.pop("vector_cpu").startswith("the zeros are unstructured")
    assert reasons.pop("winograd_cpu").startswith("only 3x3 taps")
    assert all("at most" in reason for reason in reasons.values())
    assert TuningLog(tmp_path / "log.jsonl").lookup(spec, pattern, {}) is None
    kernel = make_kernel("linear_cpu", spec, weight, CPU)
    arguments = reference.random_arguments(spec, 0)
    y = tvm.runtime.tensor(np.full(spec.output_shape, np.nan, np.float32))
    arrays = (arguments["x"], *kernel.constants, arguments["bias"])
    lowering.build(kernel.func, CPU)["main"](*map(tvm.runtime.tensor, arrays), y)
    assert reference.reference(spec, arguments["x"], weight, arguments["bias"]).worst(y.numpy()) <= 1
    assert sum(array.nbytes for array in kernel.constants) < 6.1 * pattern.nnz
