"""Three layers of a residual network in one kernel: where that is decided, and what is called then."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
import tvm
from bottlenecks import Bottleneck, prepared_of
from torch import nn

from tvm_sparse.codegen.kernel_cache import KernelCache
from tvm_sparse.compiler.building import verify_bottlenecks
from tvm_sparse.compiler.building.kernel_store import KernelStore
from tvm_sparse.compiler.building.make_kernels import kernels_of
from tvm_sparse.compiler.layouts.fuse_bottlenecks import fuse_bottlenecks, names_of, packed_of
from tvm_sparse.compiler.layouts.keep_nhwc import keep_nhwc, results_in_nhwc
from tvm_sparse.compiler.pipeline import Options, planned
from tvm_sparse.compiler.plan.bottlenecks import joined_bottlenecks, without_bottlenecks
from tvm_sparse.compiler.rewriting.replace_convolutions import replace_convolutions
from tvm_sparse.cudnn import library
from tvm_sparse.frontend.passes.relax_graph import Graph, is_call
from tvm_sparse.frontend.prepare import prepare
from tvm_sparse.scheduling.annotations import KERNEL_LIBRARY
from tvm_sparse.target.gpu import gpu_info
from tvm_sparse.target.resolve import resolve_target

CUDA = resolve_target('{"kind":"cuda","arch":"sm_90"}')


@pytest.fixture(autouse=True)
def cudnn(monkeypatch):
    monkeypatch.setattr(library, "find", lambda: "libcudnn.so.9")
    monkeypatch.setattr(library, "version", lambda: "9.19.0")


def test_layers_of_large_maps_are_in_one_kernel():
    plan = planned(prepared_of(), CUDA, None, Options())
    joins = [each.joins for each in plan.decisions]
    last = [plan.layers[index].name for index in (2, 5)]
    assert joins == [last[0], last[0], None, last[1], last[1], None]
    assert "its kernel computes" in plan.decisions[2].to_json()["reason"]


@pytest.mark.parametrize("sizes", [{"batch": 1, "size": 14}, {"narrow": 128}])
def test_others_are_not(sizes):
    plan = planned(prepared_of(**sizes, count=1), CUDA, None, Options())
    assert not any(each.joins for each in plan.decisions)


def calls_of(module):
    return [each for each in Graph.of(module).definitions.values() if is_call(each, "relax.call_tir")]


def module_of(prepared, decisions):
    kernels = kernels_of(prepared.layers, list(decisions), CUDA)
    module = replace_convolutions(prepared.mod, kernels, prepared.groups)
    names = names_of(joined_bottlenecks(prepared, decisions), "some")
    in_nhwc = keep_nhwc(module, results_in_nhwc(prepared, kernels), CUDA)
    return names, fuse_bottlenecks(in_nhwc, names, gpu_info(CUDA))


def test_bottlenecks_that_differ_by_a_bias_stay_apart():
    torch.manual_seed(0)
    first = Bottleneck()
    second = copy.deepcopy(first)
    second.second.bias.data += 1
    prepared = prepare(nn.Sequential(first, second), (torch.zeros(64, 256, 56, 56),), None, None, "float16")
    names, module = module_of(prepared, planned(prepared, CUDA, None, Options()).decisions)
    weights = {each.args[0].name_hint: each.args[1][1] for each in calls_of(module) if each.args[0].name_hint in names}
    assert len(weights) == 2
    for name, joined in names.items():
        np.testing.assert_array_equal(weights[name].value.numpy(), packed_of(joined))
    # In their order.
    called = [each.args[0].name_hint for each in calls_of(module) if each.args[0].name_hint in names]
    assert [names[each].third.name for each in called] == ["0.third", "1.third"]


def test_one_call_is_in_the_place_of_three():
    plan = planned(prepared_of(), CUDA, None, Options())
    names, module = module_of(plan.prepared, plan.decisions)
    calls = calls_of(module)
    called = [each.args[0].name_hint for each in calls if not each.args[0].name_hint.startswith("tvm_sparse_to_")]
    assert called == list(names) == ["some_bottleneck_0", "some_bottleneck_1"]
    assert all(KERNEL_LIBRARY in module[name].attrs for name in called)
    assert len(calls) == len(called) + 2
    weights = next(each.args[1][1] for each in calls if each.args[0].name_hint == "some_bottleneck_1")
    np.testing.assert_array_equal(weights.value.numpy(), packed_of(names["some_bottleneck_1"]))


class Executable:
    """What a model's function would be, made of torch's float16."""

    def __init__(self, off):
        torch.manual_seed(0)
        self.layer, self.off = Bottleneck(), off

    def get_function(self, name, query_imports):
        def function(x, weights, y):
            found = self.layer.half()(torch.from_numpy(x.numpy()).permute(0, 3, 1, 2)) + self.off
            y.copyfrom(found.detach().permute(0, 2, 3, 1).contiguous().numpy())

        return function if name == "some_bottleneck_0" else None


@pytest.mark.parametrize(("off", "count"), [(0, 1), (0.02, 1), (0, 2)])
def test_what_is_wrong_or_missing_is_computed_apart(off, count, monkeypatch):
    monkeypatch.setattr(verify_bottlenecks, "why_not_here", lambda _: "")
    monkeypatch.setattr(verify_bottlenecks, "device_of", lambda _: tvm.cpu())
    plan = planned(prepared_of(batch=2, size=6, count=count), CUDA, None, Options())
    joins = ["0.third", "0.third", None, "1.third", "1.third", None]
    decisions = [replace(each, joins=last) for each, last in zip(plan.decisions, joins, strict=False)]
    names = names_of(joined_bottlenecks(plan.prepared, decisions), "some")
    wrong = verify_bottlenecks.wrong_bottlenecks(names, Executable(off), CUDA)
    assert list(wrong) == ["0.third"] * bool(off) + ["1.third"] * (count - 1)
    apart = without_bottlenecks(decisions, wrong)
    assert [each.joins for each in apart] == [None if each.joins in wrong else each.joins for each in decisions]
    assert all(str(wrong["0.third"]) in str(each.reason) for each in apart[:3] if off)


def test_a_kernel_that_cannot_be_verified_is_not_used():
    plan = planned(prepared_of(), CUDA, None, Options())
    names = names_of(joined_bottlenecks(plan.prepared, plan.decisions), "some")
    assert list(verify_bottlenecks.wrong_bottlenecks(names, None, CUDA)) == ["0.third", "1.third"]


def test_what_was_right_is_not_run_again(monkeypatch, tmp_path):
    monkeypatch.setattr(verify_bottlenecks, "why_not_here", lambda _: "")
    monkeypatch.setattr(verify_bottlenecks, "device_of", lambda _: tvm.cpu())
    prepared = prepared_of(batch=2, size=6, count=1)
    decisions = [replace(each, joins="0.third") for each in planned(prepared, CUDA, None, Options()).decisions]
    names, store = (
        names_of(joined_bottlenecks(prepared, decisions), "some"),
        KernelStore(KernelCache(tmp_path, 1 << 20), CUDA),
    )
    # A kernel that is wrong is only found where it is run.
    for off in (0, 0.02):
        assert not verify_bottlenecks.wrong_bottlenecks(names, Executable(off), CUDA, store)
