"""Large CUDA kernels as translation units: sources, numerics emulated on the CPU, and what nvcc makes of them."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from cuda_emulator import build_source, emulate
from tvm.target import Target

from tvm_sparse.codegen import lowering
from tvm_sparse.codegen.cuda import nvcc
from tvm_sparse.codegen.cuda.cubin import function_bytes
from tvm_sparse.codegen.cuda.nvcc import cuda_compiler
from tvm_sparse.codegen.cuda.separate_compilation import TranslationUnit, split
from tvm_sparse.conv import reference
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.errors import BuildError, UsageError
from tvm_sparse.measure.measurer import Measurer
from tvm_sparse.measure.outcome import MeasureOptions
from tvm_sparse.schedules.lookup import make_kernel
from tvm_sparse.scheduling import code_size
from tvm_sparse.target.cpu import COMPILERS, available_cores, compiler_count
from tvm_sparse.target.resolve import resolve_target

CUDA = Target({"kind": "cuda", "arch": "sm_90"}, host={"kind": "llvm"})
SPEC = ConvSpec(2, 8, 10, 10, 8, 3, 3, padding=(1, 1, 1, 1), bias=True, residual=True, relu=True)
HOOK = "tvm_callback_cuda_compile"
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc on PATH to compile CUDA code")


def folded(spec: ConvSpec = SPEC) -> tuple[np.ndarray, Any, str, list]:
    """A weight, the kernel of several tiles of output channels that folds it, its source and its launches."""
    rng = np.random.default_rng(0)
    weight = np.where(rng.random(spec.weight_shape) < 0.3, rng.integers(1, 9, spec.weight_shape), 0).astype(np.float32)
    kernel = make_kernel("folded_cuda", spec, weight, CUDA)
    return weight, kernel, *build_source(kernel.func, CUDA)


@pytest.fixture
def small_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kernel of several tiles is split, and every region has a translation unit of its own."""
    monkeypatch.setattr(code_size, "REGION_NON_ZEROS", 1)
    monkeypatch.setattr(code_size, "SPLIT_LINES", 1)
    monkeypatch.setattr(code_size, "UNIT_LINES", 1)


@pytest.fixture
def three_units(small_units: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four regions in each but that of the kernel: nvcc takes most of its time for a unit, whatever that holds."""
    monkeypatch.setattr(code_size, "UNIT_LINES", 400)


def joined(units: list[TranslationUnit]) -> str:
    """One source that the emulator understands: the regions as functions that return, in front of their kernel."""
    (main,) = (unit.source for unit in units if "__global__" in unit.source)
    functions = [re.split(r'extern "C" \{ extern .*\n', unit.source)[1] for unit in units if unit.source != main]
    storage, count = re.search(r'extern "C" \{ __shared__ (size_t \w+\[(\d+)\]); \}\n', main).group(0, 2)
    source = re.sub(r"\n#define tvm_sparse_prefetch_code(?:.*\\\n)*.*\n", "\n", main.replace(storage, ""))
    kernel = re.search(r'^extern "C" __device__', source, re.MULTILINE).start()
    read = "template <typename T> static T tvm_sparse_read(const T* at) { return *at; }\n"
    head = f"{source[:kernel]}{read}static size_t tvm_sparse_arguments[{count}];\n"
    text = head + "".join(functions) + source[kernel:]
    for found, emulated in (
        ('extern "C" __device__ __noinline__ __attribute__((noreturn))', "static"),
        ('asm volatile("exit;");', ""),
        ("__builtin_unreachable();", ""),
        ("__cvta_generic_to_global", "(size_t)"),
        ("__cvta_global_to_generic", ""),
    ):
        text = text.replace(found, emulated)
    return text


def test_a_small_kernel_stays_whole() -> None:
    """Its source is compiled as it is."""
    source = folded()[2]
    assert split(source) == [TranslationUnit(source)]
    assert split("int x;") == [TranslationUnit("int x;")]


def test_every_region_becomes_a_function(small_units: None) -> None:
    """Each multiply-add is in one unit, none is in the kernel; the register limit is that of the launch bounds."""
    source = folded()[2]
    units = split(source)
    tiles = source.count("region_begin();")
    assert tiles > 1 and len(units) == tiles + 1
    products = [len(re.findall(r"\* -?0x", unit.source)) for unit in units]
    assert sum(products) == len(re.findall(r"\* -?0x", source)) and products[-1] == 0
    threads, blocks = re.search(r"__launch_bounds__\((\d+)(?:, (\d+))?\)", source).groups()
    registers = 16384 // (-(-int(threads) // 128) * 32 * int(blocks or 1)) // 8 * 8
    assert {unit.options for unit in units[:-1]} == {(f"-maxrregcount={min(registers, 255)}",)}


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++ to emulate CUDA code")
def test_emulated_units_match_the_reference(small_units: None) -> None:
    """With bias and residual, which are read behind the last barrier, exactly."""
    weight, kernel, source, launches = folded()
    arguments = reference.random_arguments(SPEC, 1, integers=True)
    y = np.full(SPEC.output_shape, np.nan, np.float32)
    names = [parameter.name for parameter in kernel.func.params]
    values = (arguments["x"], arguments["bias"], arguments["residual"], y)
    emulate(joined(split(source)), launches, dict(zip(names, values, strict=True)))
    expected = reference.reference(SPEC, arguments["x"], weight, arguments["bias"], arguments["residual"])
    np.testing.assert_array_equal(y, expected.value)


@needs_nvcc
def test_units_of_half_precision_share_their_helpers(three_units: None) -> None:
    """TVM writes `make_half4` and others into every source, which a linker would find several times."""
    source = folded(replace(SPEC, dtype="float16", w=8, padding=(1, 1, 1, 1)))[2]
    assert "half4 make_half4(" in source and len(split(source)) == 3
    with cuda_compiler(CUDA):
        assert bytes(tvm_ffi.get_global_func(HOOK)(source)).startswith(b"\x7fELF")


@needs_nvcc
def test_nvcc_links_the_units_and_a_kernel_prefetches_as_much_code_as_its_regions_have(
    three_units: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is compiled last, with the bytes of each region, which the linked module has; no hook stays with TVM."""
    given: list[TranslationUnit] = []

    def recorded(unit: TranslationUnit, target: Target) -> bytes:
        given.append(unit)
        return compile_unit(unit, target)

    compile_unit = nvcc._compile_unit
    monkeypatch.setattr(nvcc, "_compile_unit", recorded)
    source, before = folded()[2], tvm_ffi.get_global_func(HOOK)
    with cuda_compiler(CUDA):
        code = bytes(tvm_ffi.get_global_func(HOOK)(source))
    assert tvm_ffi.get_global_func(HOOK).same_as(before)
    for name in ("main_kernel", "main_kernel_region_0", "main_kernel_region_1"):
        assert name.encode() + b"\0" in code
    sizes = {name: size for name, size in function_bytes(code).items() if "_region_" in name}
    assert len(sizes) == 8 and [unit.measures for unit in given] == [False, False, True]
    defined = dict(option.removeprefix("-Dtvm_sparse_code_bytes_").split("=") for option in given[-1].options)
    assert {name: int(size) for name, size in defined.items()} == sizes and min(sizes.values()) > 128
    (tmp_path / "module.cubin").write_bytes(code)
    listed = subprocess.run(
        ["readelf", "-SW", "module.cubin"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    rows = re.findall(r"\.text\.(\w+_region_\d+) +PROGBITS +\w+ +\w+ +(\w+)", listed.stdout)
    assert {name: int(size, 16) for name, size in rows} == sizes


@needs_nvcc
def test_regions_do_not_spill(small_units: None, tmp_path: Path) -> None:
    """A region has the registers that its kernel has."""
    unit = split(folded()[2])[0]
    (tmp_path / "unit.cu").write_text(unit.source)
    command = ["nvcc", "-arch=sm_90", "-cubin", "-rdc=true", "-O3", "-Xptxas", "-v", *unit.options, "unit.cu"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert set(re.findall(r"(\d+) bytes spill", done.stderr)) == {"0"}


@needs_nvcc
def test_a_unit_that_fails_is_a_build_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The sentence quotes the compiler, and no file is left."""
    kernel = make_kernel("dense_cuda", SPEC, np.ones(SPEC.weight_shape, np.float32), CUDA)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(nvcc, "split", lambda _: [TranslationUnit("this is no CUDA;"), TranslationUnit("nor is this;")])
    monkeypatch.setattr(lowering.tvm, "compile", lambda *_, **__: tvm_ffi.get_global_func(HOOK)("source"))
    with pytest.raises(BuildError, match=r"the compiler rejects it: .*(this|nor)"):
        lowering.build(kernel.func, CUDA)
    assert list(tmp_path.iterdir()) == []


@needs_nvcc
def test_units_that_do_not_link_are_a_compilation_error() -> None:
    """In the form that TVM gives a compiler's complaints."""
    missing = TranslationUnit('extern "C" __device__ void f(); extern "C" __global__ void k() { f(); }')
    with pytest.raises(RuntimeError, match=r"Compilation error:(.|\n)*\bf\b"):
        nvcc._compile_units([missing, TranslationUnit("")], CUDA)


def test_the_number_of_compilers_is_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """All cores by default; nonsense is named."""
    monkeypatch.delenv(COMPILERS, raising=False)
    assert compiler_count() == available_cores()
    monkeypatch.setenv(COMPILERS, "3")
    assert compiler_count() == 3
    monkeypatch.setenv(COMPILERS, "many")
    with pytest.raises(UsageError, match=r"TVM_SPARSE_COMPILERS.*many.*1 or more"):
        compiler_count()


@pytest.mark.parametrize(("filters", "builders", "compilers"), [(64, 16, 1), (512, 2, 8)])
def test_builders_of_large_kernels_share_the_cores(filters: int, builders: int, compilers: int) -> None:
    """No more compilers run than there were builders."""
    spec = ConvSpec(1, 256, 2, 2, filters, 1, 1)
    options = MeasureOptions(builders=16)
    with Measurer(spec, np.ones(spec.weight_shape, np.float32), CUDA, options) as measurer:
        measurer._hire()
        assert len(measurer._workers) == builders
        assert measurer._workers[0]._variables[COMPILERS] == str(compilers)


@pytest.mark.gpu
def test_units_on_the_gpu_match_the_reference(small_units: None) -> None:
    """With bias and residual, exactly, and no element is left unwritten."""
    target, device = resolve_target("cuda"), tvm.cuda(0)
    weight, kernel, *_ = folded()
    arguments = reference.random_arguments(SPEC, 1, integers=True)
    y = tvm.runtime.tensor(np.full(SPEC.output_shape, np.nan, np.float32), device)
    given = [tvm.runtime.tensor(arguments[name], device) for name in ("x", "bias", "residual")]
    lowering.build(kernel.func, target)["main"](*given, y)
    expected = reference.reference(SPEC, arguments["x"], weight, arguments["bias"], arguments["residual"])
    np.testing.assert_array_equal(y.numpy(), expected.value)
