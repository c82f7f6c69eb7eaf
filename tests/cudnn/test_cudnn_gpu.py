"""NVIDIA's cuDNN on a GPU: right, on the current stream, in CUDA graphs, from several threads, without new memory."""

from __future__ import annotations

import ctypes
import random
import threading

import numpy as np
import pytest
import torch
import tvm
import tvm_ffi
import zoo
from random_convolutions import random_case

from benchmarks.models import torch_models
from tvm_sparse.autotune.layer import tune_layer
from tvm_sparse.autotune.options import TuneOptions
from tvm_sparse.codegen import lowering
from tvm_sparse.compiler import build_model
from tvm_sparse.conv import reference
from tvm_sparse.conv.error_bounds import TF32
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.cudnn import library, packed_function
from tvm_sparse.errors import BuildError
from tvm_sparse.logs.tuning_log import TuningLog
from tvm_sparse.measure.call_row import Row
from tvm_sparse.measure.cuda_graph_timer import GraphTimer
from tvm_sparse.measure.outcome import MeasureOptions
from tvm_sparse.schedules.dense_cudnn import CudnnSpace
from tvm_sparse.scheduling.kernel import Kernel, apply_decisions
from tvm_sparse.target.resolve import resolve_target

pytestmark = pytest.mark.gpu
SPEC = ConvSpec(4, 64, 28, 28, 96, 3, 3, padding=(1, 1, 1, 1), bias=True, residual=True, relu=True)
NHWC = {"layout": "nhwc", "algorithm": "implicit_precomp_gemm", "epilogue": "fused"}


@pytest.fixture(scope="module", autouse=True)
def real():
    """Compiled code calls the cuDNN of this machine."""
    if library.find() is None:
        pytest.skip(f"{library.NOT_FOUND}: {library.INSTALL}")
    packed_function.register.cache_clear()
    packed_function.register()


@pytest.fixture(scope="module")
def target():
    return resolve_target("cuda")


class OnGpu:
    """A kernel with its arguments on the GPU."""

    def __init__(
        self, kernel: Kernel, spec: ConvSpec, target: tvm.target.Target, seed: int = 0, integers: bool = False
    ):
        self.arguments = reference.random_arguments(spec, seed, integers)
        self.module, self.device = lowering.build(kernel.func, target), tvm.cuda(0)
        x, *epilogue = self.arguments.values()
        self.y = tvm.runtime.tensor(np.full(spec.output_shape, np.nan, np.float32), self.device)
        arrays = (x, *kernel.constants, *epilogue)
        self.tensors = [*(tvm.runtime.tensor(array, self.device) for array in arrays), self.y]
        self.function = self.module["main"]

    def call(self) -> None:
        self.function(*self.tensors)

    def poison(self) -> None:
        self.y.copyfrom(np.full(self.y.shape, np.nan, np.float32))

    def result(self) -> np.ndarray:
        self.device.sync()
        return self.y.numpy()


def weight_of(spec: ConvSpec) -> np.ndarray:
    rng = np.random.default_rng(0)
    weight = rng.standard_normal(spec.weight_shape) * (rng.random(spec.weight_shape) < 0.3)
    return weight.astype(np.float32)


def on_gpu(target, decisions=NHWC, precision="fp32", spec=SPEC, seed=0) -> OnGpu:
    kernel = apply_decisions(CudnnSpace(spec, precision), weight_of(spec), decisions)
    return OnGpu(kernel, spec, target, seed)


def expected_of(call: OnGpu, spec=SPEC, tf32=False) -> reference.Reference:
    found = reference.reference(spec, weight=weight_of(spec), **call.arguments)
    return found.within(TF32, weight_of(spec)) if tf32 else found


@pytest.mark.parametrize("precision", ["fp32", "tf32"])
def test_random_convolutions_are_right(target, precision, capsys):
    """By every combination that is measured; each convolution is served by one of them at least."""
    choose = random.Random(20).choice
    refused, worst, count = [], 0.0, 0
    for _ in range(100):
        case = random_case(choose)
        space = CudnnSpace(case.spec, precision)
        served = 0
        for start in space.starts():
            call = OnGpu(apply_decisions(space, case.weight, start), case.spec, target, case.seed, case.integers)
            try:
                call.call()
            except BuildError as error:
                refused.append(str(error))
                continue
            exact = reference.reference(case.spec, weight=case.weight, **call.arguments)
            error = (exact.within(TF32, case.weight) if precision == "tf32" else exact).worst(call.result())
            assert error <= 1, f"{start}, {case!r}"
            worst, served, count = max(worst, error), served + 1, count + 1
        assert served, refused[-len(space.starts()) :]
    with capsys.disabled():
        print(f"\n{precision}: {count} kernels, worst error {worst:.3g} of the bound, {len(refused)} refused")
        print("\n".join(sorted({text.partition("fails, ")[2] or text for text in refused})))


def test_each_precision_is_what_it_says(target):
    """Strict float32 meets float32's bound; TF32 does not, so it is used at all, and meets its own."""
    exact, rounded = on_gpu(target), on_gpu(target, precision="tf32")
    for call in (exact, rounded):
        call.call()
    assert expected_of(exact).worst(exact.result()) <= 1
    assert expected_of(rounded).worst(rounded.result()) > 1
    assert expected_of(rounded, tf32=True).worst(rounded.result()) <= 1


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_a_cuda_graph_repeats_it(target, layout):
    call = on_gpu(target, {**NHWC, "layout": layout})
    call.call()
    expected = call.result()
    timer = GraphTimer(call.device, Row([call.call] * 3))
    call.poison()
    assert timer.time_us() > 0
    np.testing.assert_array_equal(call.result(), expected)
    timer.close()


def test_it_waits_for_the_current_stream(target):
    """The input arrives on a stream of its own behind a long wait; elsewhere the convolution would read the old one."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs torch with CUDA")
    call = on_gpu(target)
    call.call()
    expected = call.result()
    x = torch.from_dlpack(call.tensors[0])
    right, stream = x.clone(), torch.cuda.Stream()
    x.zero_()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        x.copy_(right)
        with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda", 0), stream.cuda_stream):
            call.call()
    np.testing.assert_array_equal(call.result(), expected)


def test_threads_share_it(target):
    """Each with data and a function of its own, on TVM's stream of that thread."""
    calls = [on_gpu(target, {**NHWC, "layout": layout}, seed=seed) for seed, layout in enumerate(["nchw", "nhwc"] * 2)]
    failures: list[BaseException] = []

    def work(call: OnGpu) -> None:
        try:
            for _ in range(200):
                call.call()
            assert expected_of(call).worst(call.result()) <= 1
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_many_calls_leave_nothing_behind(target):
    driver, call = ctypes.CDLL("libcuda.so.1"), on_gpu(target)

    def free_bytes() -> int:
        call.device.sync()
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        assert driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
        return free.value

    def loses_memory() -> bool:
        before = free_bytes()
        for _ in range(10_000):
            call.call()
        return free_bytes() < before

    for _ in range(10):
        call.call()
    # Other processes may take memory of this GPU meanwhile; a leak takes some every time.
    assert not all(loses_memory() for _ in range(4))


def test_a_layer_is_tuned_beside_it(target):
    """Records keep both precisions, warm and cold; the strict one is no faster than the GPU's peak allows."""
    options = TuneOptions(trials=5, schedules=("folded_cuda",), measure=MeasureOptions(repeats=3, min_repeat_ms=1.0))
    records = list(tune_layer(SPEC, weight_of(SPEC), target, options))
    calls = [record for record in records if record.schedule.startswith("dense_cudnn")]
    assert {record.schedule for record in calls if record.status == "ok"} == {"dense_cudnn:fp32", "dense_cudnn:tf32"}
    assert all(record.fingerprint["cudnn"] == library.version() for record in records)
    sparse = [record for record in records if not record.is_dense and record.status == "ok"]
    assert sparse
    for record in sparse:
        names = {record.baseline, *record.counting_library_times_us}
        assert names >= {"dense_cudnn:fp32", "dense_cudnn:tf32"} and record.is_cold


@pytest.mark.parametrize(("dtype", "tolerance"), [(None, 4e-3), ("float16", 1e-2)])
def test_a_model_whose_tensors_stay_in_nhwc(dtype, tolerance):
    """Without a log cuDNN computes all of it: pools and a concatenation between layers, and what a mean reads."""
    module, ((_, c, h, w),) = zoo.TORCH["between"]
    x = torch.randn(4, c, h, w, generator=torch.Generator().manual_seed(0))
    model = build_model.compile(
        module, x, target="cuda", log=TuningLog("none.jsonl"), allow_tf32=True, dtype=dtype, predict=False
    )
    assert all("in NHWC" in row["reason"] for row in model.report())
    expected = torch_models.reference(module, x)
    for _ in range(3):
        found = model(x.cuda().to(getattr(torch, dtype or "float32")))
        assert (found.cpu().double() - expected).abs().max() <= tolerance * expected.abs().max()
