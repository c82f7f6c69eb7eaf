"""cuDNN's suggestions: which one computes, with what, and where one is not to be had; on a library of the host."""

from dataclasses import replace

import numpy as np
import pytest
import tvm
from fake_cudnn import HOST, host_module, run, worst

from tvm_sparse.codegen import lowering
from tvm_sparse.conv import reference
from tvm_sparse.conv.error_bounds import TF32
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.conv.volumes import Volumes
from tvm_sparse.cudnn.api import Cudnn
from tvm_sparse.cudnn.convolution import Convolution
from tvm_sparse.cudnn.plan import SUGGESTIONS, Plan
from tvm_sparse.errors import BuildError
from tvm_sparse.exporter.cudnn_work import works_in
from tvm_sparse.schedules.dense_cudnn import TRIED, CudnnSpace
from tvm_sparse.scheduling.cudnn_calls import convolution_call, without_conversions
from tvm_sparse.scheduling.kernel import apply_decisions

SPEC = ConvSpec(2, 4, 7, 9, 6, 3, 3, stride=(2, 1), padding=(1, 2, 1, 2), dilation=(1, 2), groups=2, bias=True)
FUSED, EXECUTE, COPY = "ConvolutionBiasActivationForward", "BackendExecute", "TransformTensor"


def plan_of(rank, spec=SPEC, **changes):
    return Plan(spec, "nhwc", f"suggested_{rank}", "fused", True, **changes)


def kernel_of(rank, spec=SPEC):
    weight = np.random.default_rng(0).standard_normal(spec.weight_shape).astype(np.float32)
    decisions = {"layout": "nhwc", "algorithm": f"suggested_{rank}", "epilogue": "fused"}
    return apply_decisions(CudnnSpace(spec, "tf32"), weight, decisions), weight


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [COPY, EXECUTE, COPY]),
        ({"bias": False}, [COPY, EXECUTE, COPY]),
        ({"relu": True, "residual": True}, [COPY, COPY, EXECUTE, COPY]),
        ({"relu": True, "relu_max": 6.0}, [COPY, EXECUTE, COPY, "ActivationForward"]),
        ({"padding": (0, 2, 2, 2)}, ["SetTensor", COPY, EXECUTE, COPY]),
    ],
)
def test_a_suggestion_computes_the_epilogue_too(fake, changes, expected):
    spec = replace(SPEC, **changes)
    kernel, weight = kernel_of(1, spec)
    assert worst(kernel, spec, weight, TF32) <= 1
    assert (fake.names(), fake.rank()) == (expected, 2)


def test_between_layers_like_it_nothing_is_converted(fake):
    """Of arrays whose shapes are said to be another order the numbers are as many."""
    spec = replace(SPEC, relu=True, residual=True, padding=(1, 1, 1, 1))
    kernel, weight = kernel_of(1, spec)
    module = lowering.build(kernel.func, HOST, between=without_conversions(kernel.func))
    arguments = reference.random_arguments(spec, 0)
    values = (arguments["x"], *kernel.constants, arguments["bias"], arguments["residual"])
    y = np.full(spec.output_shape, np.nan, spec.dtype)
    module["between"](*map(tvm.runtime.tensor, values), given := tvm.runtime.tensor(y))
    assert fake.names() == [EXECUTE]

    def turned(name, n, c, h, w):
        return arguments[name].reshape(n, h, w, c).transpose(0, 3, 1, 2)

    lying = {"x": turned("x", *spec.input_shape), "residual": turned("residual", *spec.output_shape)}
    expected = reference.reference(spec, weight=weight, bias=arguments["bias"], **lying)
    n, k, h, w = spec.output_shape
    assert expected.within(TF32, weight).worst(given.numpy().reshape(n, h, w, k).transpose(0, 3, 1, 2)) <= 1
    for plan in (replace(plan_of(1), converts=False), Plan(SPEC, "nchw", "implicit_precomp_gemm", "fused", True)):
        assert without_conversions(convolution_call(plan)) is None


def test_its_rank_says_which_but_for_ffts_and_the_last_one_stands_for_those_that_are_not_there(fake):
    for rank, expected in ((2, 3), (0, 0), (1, 2), (len(SUGGESTIONS) - 1, 3)):
        run(kernel_of(rank)[0], SPEC, reference.random_arguments(SPEC, 0))
        assert fake.rank() == expected


def test_what_cudnn_is_told_of_arrays_is_kept_for_a_few(fake):
    spec = ConvSpec(1, 2, 4, 4, 2, 1, 1, bias=True, dtype="float32")
    plan = plan_of(0, spec, converts=False)
    call = Convolution(Cudnn(fake.library), Cudnn(fake.library).create_handle(), plan)
    arrays = {name: np.zeros(plan.scratch["end"] // 4, np.float32) for name in plan.arguments}
    made = []
    for count in (1, 1, 100, 100):
        rows = np.zeros((count, 64), np.float32)
        for row in rows:
            call(0, {name: array.ctypes.data for name, array in arrays.items()} | {"y": row.ctypes.data})
        made.append(fake.created())
    assert made[1] <= made[0] + 1 and made[3] == made[2] <= made[0] + 64


@pytest.mark.parametrize("function", ["cudnnBackendFinalize", "cudnnBackendExecute"])
def test_a_suggestion_that_fails_is_a_sentence(fake, function):
    kernel, arguments = kernel_of(0)[0], reference.random_arguments(SPEC, 0)
    module = host_module(kernel)
    fake.fail(function, 3000)
    with pytest.raises(BuildError, match=rf"suggested_0, fused: cuDNN .* fails, {function}: CUDNN_STATUS_NOT"):
        run(kernel, SPEC, arguments, module)


def test_a_suggestion_has_the_workspace_that_is_planned(fake):
    planned = plan_of(0).workspace_bytes
    fake.want_workspace(planned + 1)
    with pytest.raises(BuildError, match="more workspace than is planned"):
        run(kernel_of(0)[0], SPEC, reference.random_arguments(SPEC, 0))


def test_suggestions_are_for_tensor_cores_and_maps():
    def tried(spec, variant):
        return {start["algorithm"] for start in CudnnSpace(spec, variant).starts()} & SUGGESTIONS.keys()

    assert tried(SPEC, "tf32") == set(TRIED) and not tried(SPEC, "fp32")
    assert tried(replace(SPEC, dtype="float16"), "fp16") == set(TRIED)
    volumes = Volumes(size=2, outputs=2, taps=2)
    assert not tried(replace(SPEC, c=8, volumes=volumes), "tf32")


@pytest.mark.parametrize(("own_us", "count"), [(None, 0), (105.0, 0), (115.0, len(SUGGESTIONS) - len(TRIED))])
def test_all_are_tried_where_one_is_much_faster_than_what_cudnn_chooses(own_us, count):
    times = {"implicit_precomp_gemm": own_us, "suggested_0": None, "suggested_5": 100.0}
    space = CudnnSpace(SPEC, "tf32")
    more = space.more_starts(lambda decisions: times.get(decisions["algorithm"], 130.0))
    assert len(more) == count and {each["layout"] for each in more} <= {"nhwc"}
    assert not any(each in space.starts() for each in more)
    assert not CudnnSpace(SPEC, "fp32").more_starts(lambda decisions: 1.0)


def test_the_c_library_and_other_convolutions_leave_the_choice_to_cudnn():
    plan = plan_of(2)
    (work,) = works_in(plan.to_text().encode() + b"\0")
    assert work.text == plan.to_text()
    assert [call.function for call in work.calls] == [f"cudnn{name}" for name in (COPY, FUSED, COPY)]
    assert plan.unsuggested == replace(plan, algorithm="implicit_precomp_gemm")
    assert plan.unsuggested.unsuggested == plan.unsuggested
