"""Convolutions by cuDNN: what is called with what, on a library that computes on the host."""

import random
import threading
from dataclasses import replace

import numpy as np
import pytest
import tvm_ffi
from fake_cudnn import VERSION, host_module, run, worst
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_convolutions import random_case

from tvm_sparse.codegen.kernel_stages import stages
from tvm_sparse.conv import reference
from tvm_sparse.conv.dtypes import HALVES
from tvm_sparse.conv.error_bounds import EXACT, TF32
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.conv.staged_input import StagedInput
from tvm_sparse.conv.storage import rounded
from tvm_sparse.cudnn import library
from tvm_sparse.cudnn.packed_function import CudnnCalls
from tvm_sparse.cudnn.plan import SUGGESTIONS, Plan
from tvm_sparse.errors import BuildError, UsageError
from tvm_sparse.schedules import dense_cudnn
from tvm_sparse.schedules.dense_cudnn import TRIED, CudnnSpace
from tvm_sparse.schedules.lookup import arithmetic_of, find_space, make_kernel, spaces_of, title_of
from tvm_sparse.scheduling.kernel import apply_decisions
from tvm_sparse.target.resolve import resolve_target

CUDA = resolve_target('{"kind":"cuda","arch":"sm_90"}')
SPEC = ConvSpec(2, 4, 7, 9, 6, 3, 5, stride=(2, 1), padding=(1, 2, 1, 2), dilation=(1, 2), groups=2, relu=True)
NCHW = {"layout": "nchw", "algorithm": "implicit_precomp_gemm", "epilogue": "fused"}
NHWC = {**NCHW, "layout": "nhwc"}
FUSED, PLAIN, COPY = "ConvolutionBiasActivationForward", "ConvolutionForward", "TransformTensor"


def weight_of(spec, density=0.4):
    rng = np.random.default_rng(0)
    return np.where(rng.random(spec.weight_shape) < density, rng.standard_normal(spec.weight_shape), 0).astype(
        np.float32
    )


def kernel_of(spec, decisions, precision="fp32"):
    return apply_decisions(CudnnSpace(spec, precision), weight_of(spec), decisions)


@pytest.mark.parametrize(
    ("precision", "dtype"), [("fp32", "float32"), ("tf32", "float32"), ("fp16", "float16"), ("bf16", "bfloat16")]
)
@pytest.mark.parametrize("count", [6, pytest.param(25, marks=pytest.mark.exhaustive)])
def test_random_convolutions_are_right_by_all_decisions(fake, precision, dtype, count):
    @settings(max_examples=count, derandomize=True, suppress_health_check=HealthCheck)
    @given(st.data())
    def check(data):
        case = random_case(lambda options: data.draw(st.sampled_from(options))).stored_in(dtype)
        space = CudnnSpace(case.spec, precision)
        # One suggestion computes what another does.
        for start in (each for each in space.starts() if SUGGESTIONS.get(each["algorithm"], 0) == 0):
            kernel = apply_decisions(space, case.weight, start)
            found = worst(kernel, case.spec, case.weight, arithmetic_of(space.name), case.seed, case.integers)
            assert found <= 1, f"{start}, {case!r}"

    check()


def test_an_image_is_written_anew(fake):
    """For tensor cores only: with the two rows and columns of a stride as channels, and these in whole groups."""
    spec = ConvSpec(2, 3, 9, 8, 8, 7, 7, stride=(2, 2), padding=(3, 3, 3, 3), bias=True, relu=True)
    for precision, channels in (("fp32", 0), ("tf32", 12), ("fp16", 16)):
        own = replace(spec, dtype="float16" if precision == "fp16" else "float32")
        starts = [each for each in CudnnSpace(own, precision).starts() if each["layout"] == "nhwc_staged"]
        assert len(starts) == (1 + len(TRIED) if channels else 0)
        for start in starts[:2]:
            kernel = kernel_of(own, start, precision)
            assert kernel.constants[0].shape == (8, 4, 4, channels)
            fake.reset()
            weight = rounded(weight_of(own), own.dtype)
            assert worst(kernel, own, weight, arithmetic_of(f"dense_cudnn:{precision}")) <= 1
            # Of the output, to NCHW.
            assert fake.names() == ["BackendExecute" if start["algorithm"] in SUGGESTIONS else FUSED, COPY]
    even = replace(spec, c=4)
    assert all(each["layout"] != "nhwc_staged" for each in CudnnSpace(even, "tf32").starts())
    with pytest.raises(BuildError, match="layout"):
        kernel_of(even, {**NHWC, "layout": "nhwc_staged"}, "tf32")


def test_tf32_is_no_float32(fake):
    """The bounds tell them apart: what TF32 gives is wrong as float32, and float32 is right as TF32."""
    weight = weight_of(SPEC)
    for precision, arithmetic, is_right in (("fp32", EXACT, True), ("fp32", TF32, True), ("tf32", EXACT, False)):
        found = worst(kernel_of(SPEC, NHWC, precision), SPEC, weight, arithmetic)
        assert (found <= 1) == is_right, (precision, arithmetic, found)


@pytest.mark.parametrize("dtype", HALVES)
def test_half_precision_has_one_variant_that_rounds_once(fake, dtype, monkeypatch):
    monkeypatch.setattr(dense_cudnn, "why_not_here", lambda: "")
    spec = replace(SPEC, bias=True, residual=True, dtype=dtype)
    (space,) = dense_cudnn.spaces(spec, SparsityPattern.of(weight_of(spec)), CUDA)
    assert title_of(space.name) == f"cuDNN {dtype}"
    assert {start["epilogue"] for start in space.starts()} == {"fused"}
    kernel = apply_decisions(space, rounded(weight_of(spec), dtype), space.starts()[0])
    assert {str(each.dtype) for each in kernel.constants} == {dtype}


@pytest.mark.parametrize(
    ("changes", "decisions", "expected"),
    [
        ({}, NCHW, [FUSED]),
        ({"bias": True, "residual": True}, NCHW, [FUSED]),
        ({"relu": False}, NCHW, [PLAIN]),
        ({"relu": False, "bias": True}, NCHW, [FUSED]),
        ({}, NHWC, [COPY, FUSED, COPY]),
        # A ReLU6 is fused as a ReLU, and clipped afterwards.
        ({"relu_max": 6.0}, NHWC, [COPY, FUSED, COPY, "RELU"]),
        ({"relu_max": 6.0}, {**NCHW, "epilogue": "apart"}, [PLAIN, "RELU"]),
        ({"residual": True}, NHWC, [COPY, COPY, FUSED, COPY]),
        ({"bias": True, "residual": True}, {**NCHW, "epilogue": "apart"}, [PLAIN, "AddTensor", "AddTensor", "RELU"]),
        ({"residual": True}, {**NHWC, "epilogue": "apart"}, [COPY, PLAIN, COPY, "AddTensor", "RELU"]),
        # Padding that is not the same on both sides is written into a copy, in the layout that is wanted.
        ({"padding": (0, 2, 2, 2)}, NCHW, ["SetTensor", COPY, FUSED]),
        ({"padding": (0, 2, 2, 2)}, NHWC, ["SetTensor", COPY, FUSED, COPY]),
        # The last padded row is not read.
        ({"padding": (1, 2, 0, 2), "h": 8}, NCHW, [FUSED]),
    ],
)
def test_what_is_called(fake, changes, decisions, expected):
    spec = replace(SPEC, **changes)
    weight = weight_of(spec)
    assert worst(kernel_of(spec, decisions), spec, weight, EXACT) <= 1
    assert [
        name.replace("ActivationForward", "RELU") if name == "ActivationForward" else name for name in fake.names()
    ] == expected


def test_it_runs_on_the_current_stream(fake):
    kernel = kernel_of(SPEC, NHWC)
    module, arguments = host_module(kernel), reference.random_arguments(SPEC, 0)
    for stream in (0, 1234, 77):
        fake.reset()
        with tvm_ffi.use_raw_stream(tvm_ffi.device("cpu", 0), stream):
            run(kernel, SPEC, arguments, module)
        assert fake.calls() == [(COPY, stream), (FUSED, stream), (COPY, stream)]


def test_handles_and_descriptors_are_made_once(fake):
    kernel = kernel_of(SPEC, NCHW)
    module, arguments = host_module(kernel), reference.random_arguments(SPEC, 0)
    run(kernel, SPEC, arguments, module)
    made = fake.created()
    for _ in range(20):
        run(kernel, SPEC, arguments, module)
        # Another module of the same convolution and decisions, as other layers of its shape have.
        run(kernel, SPEC, arguments)
    assert fake.created() == made
    run(kernel_of(SPEC, NHWC), SPEC, arguments)
    assert fake.created() > made


def test_threads_take_turns(fake):
    """The fake refuses a handle that two threads use at the same time; each thread has a stream and data of its own."""
    kernel = kernel_of(SPEC, NHWC)
    module, failures = host_module(kernel), []

    def call(seed):
        arguments = reference.random_arguments(SPEC, seed)
        expected = reference.reference(SPEC, weight=weight_of(SPEC), **arguments)
        try:
            with tvm_ffi.use_raw_stream(tvm_ffi.device("cpu", 0), seed):
                for _ in range(30):
                    assert expected.worst(run(kernel, SPEC, arguments, module)) <= 1
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=call, args=(seed,)) for seed in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    launches = fake.calls()
    assert len(launches) == 8 * 30 * 3
    # Calls of one convolution follow each other: none of another thread comes between.
    assert all(len({stream for _, stream in launches[i : i + 3]}) == 1 for i in range(0, len(launches), 3))


@pytest.mark.parametrize("function", ["cudnnTransformTensor", f"cudnn{FUSED}"])
def test_what_cudnn_refuses_is_a_sentence(fake, function):
    kernel = kernel_of(SPEC, NHWC, "tf32")
    fake.fail(function, 3000)
    with pytest.raises(BuildError) as caught:
        run(kernel, SPEC, reference.random_arguments(SPEC, 0))
    assert str(caught.value) == (
        f"convolution {SPEC.key} by cuDNN in TF32, nhwc, implicit_precomp_gemm, fused: cuDNN {VERSION} fails, "
        f"{function}: CUDNN_STATUS_NOT_SUPPORTED (as the test wanted); "
        "tune the layer again, so that another kernel is chosen"
    )


def test_a_gpu_that_cudnn_cannot_use_is_a_sentence(fake):
    fake.fail("cudnnCreate", 3000)
    with pytest.raises(
        BuildError, match=rf"cuDNN: version {VERSION} cannot use the GPU, cudnnCreate: CUDNN_STATUS_NOT"
    ):
        run(kernel_of(SPEC, NCHW), SPEC, reference.random_arguments(SPEC, 0))


def test_a_workspace_is_used_as_far_as_it_is_planned(fake):
    kernel, arguments = kernel_of(SPEC, NCHW), reference.random_arguments(SPEC, 0)
    planned = Plan(SPEC, tf32=False, **NCHW).workspace_bytes
    fake.want_workspace(planned + 1)
    sentence = (
        rf"cuDNN needs more workspace than is planned for it, found {planned + 1}; allowed: up to {planned} bytes"
    )
    with pytest.raises(BuildError, match=sentence):
        run(kernel, SPEC, arguments)
    fake.want_workspace(planned)
    run(kernel, SPEC, arguments)


def test_without_cudnn_a_call_is_a_sentence():
    def load():
        raise BuildError("cuDNN", library.NOT_FOUND, hint=library.INSTALL)

    call = CudnnCalls(load).convolution
    x = tvm_ffi.from_dlpack(np.zeros(4, np.float32))
    with pytest.raises(BuildError, match="cuDNN 9 was not found; pip install"):
        call(x, x, x, x, x, Plan(SPEC, tf32=False, **NCHW).to_text())


def test_plans_survive_as_text():
    rng = random.Random(0)
    for _ in range(20):
        spec = random_case(rng.choice).spec
        plan = Plan(
            spec,
            rng.choice(["nchw", "nhwc"]),
            "implicit_gemm",
            rng.choice(["fused", "apart"]),
            *(rng.random() < 0.5 for _ in range(2)),
            staged=rng.choice([None, StagedInput(spec, rng.choice(["nchw", "nhwc"]))]),
            reads_nhwc=rng.random() < 0.5,
        )
        assert Plan.from_text(plan.to_text()) == plan


def test_what_lies_in_scratch_memory_does_not_overlap():
    spec = replace(SPEC, residual=True, padding=(0, 2, 2, 2))
    scratch = Plan(spec, tf32=False, **NHWC).scratch
    assert list(scratch) == ["x", "y", "residual", "workspace", "end"]
    sizes = [4 * np.prod(shape) for shape in (spec.padded_shape, spec.output_shape, spec.output_shape)]
    offsets = list(scratch.values())
    for start, end, size in zip(offsets, offsets[1:], sizes, strict=False):
        assert start % 256 == 0 and end >= start + size
    assert list(Plan(SPEC, tf32=False, **NCHW).scratch) == ["workspace", "end"]


def test_the_schedule_serves_where_cudnn_is(fake, monkeypatch):
    pattern = SparsityPattern.of(weight_of(SPEC))
    found, reasons = spaces_of(SPEC, pattern, CUDA, ["dense_cudnn"])
    assert ([each.name for each in found], reasons) == (["dense_cudnn:fp32", "dense_cudnn:tf32"], {})
    turing = resolve_target('{"kind":"cuda","arch":"sm_75"}')
    found, _ = spaces_of(SPEC, pattern, turing, ["dense_cudnn"])
    assert [each.name for each in found] == ["dense_cudnn:fp32"]
    assert find_space("dense_cudnn", SPEC, pattern, CUDA).name == "dense_cudnn:fp32"
    monkeypatch.setattr(library, "find", lambda: None)
    found, reasons = spaces_of(SPEC, pattern, CUDA, ["dense_cudnn"])
    assert not found
    assert reasons["dense_cudnn"].startswith("cuDNN 9 was not found: pip install nvidia-cudnn-cu13")
    with pytest.raises(UsageError, match=r"does not serve convolution .*: cuDNN 9 was not found"):
        find_space("dense_cudnn:tf32", SPEC, pattern, CUDA)


def test_its_kernel_is_a_call_with_memory_of_tvm(fake):
    """Nothing is compiled for the GPU, and scratch memory is an array of the function, which a model plans."""
    kernel = make_kernel("dense_cudnn", SPEC, weight_of(SPEC), CUDA, NHWC)
    root = kernel.func.body.block
    (scratch,) = root.alloc_buffers
    plan = Plan(SPEC, tf32=False, **NHWC)
    assert int(scratch.shape[0]) * 4 == plan.scratch["end"]
    space = find_space("dense_cudnn", SPEC, SparsityPattern.of(weight_of(SPEC)), CUDA)
    texts = stages(space, kernel, CUDA)
    assert "tvm_sparse.cudnn_convolution" in texts["scheduled"]()
    assert texts["cuda"]() == "// no code of its own: a library is called, see the stage before\n"


def test_decisions_that_do_not_fit_are_refused(fake):
    with pytest.raises(BuildError, match="algorithm does not fit, found 'implicit_gemm'"):
        kernel_of(SPEC, {**NCHW, "algorithm": "implicit_gemm"}, "tf32")
