"""Which layers are in NHWC: the fastest of all divisions, as what the pass makes of each costs."""

import functools
import itertools
import math
import random
from dataclasses import replace

import pytest
import torch
import zoo
from factories import make_record

from tvm_sparse.compiler.build_plan import kernels_of
from tvm_sparse.compiler.layouts import choose_layouts
from tvm_sparse.compiler.layouts.choose_layouts import NHWC
from tvm_sparse.compiler.layouts.keep_nhwc import keep_nhwc, results_in_nhwc
from tvm_sparse.compiler.layouts.layout_cut import first_side
from tvm_sparse.compiler.pipeline import decide_together
from tvm_sparse.compiler.plan.choice import Predicted
from tvm_sparse.compiler.plan.kernel_selection import decide
from tvm_sparse.compiler.plan.reasons import Kind
from tvm_sparse.compiler.rewriting.replace_convolutions import replace_convolutions
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.cudnn import library
from tvm_sparse.cudnn.layout_change import LayoutChange
from tvm_sparse.frontend.passes.relax_graph import Graph, cleaned, is_call
from tvm_sparse.frontend.prepare import prepare
from tvm_sparse.logs.tuning_log import TuningLog
from tvm_sparse.scheduling.cuda.cudnn_time import conversions_us, layout_change_us
from tvm_sparse.target.fingerprint import fingerprint_of
from tvm_sparse.target.gpu import gpu_info
from tvm_sparse.target.resolve import resolve_target, target_json

CUDA = resolve_target('{"kind":"cuda","arch":"sm_90"}')
TF32, FP16 = "dense_cudnn:tf32", "dense_cudnn:fp16"
NCHW = {**NHWC, "layout": "nchw"}


@pytest.fixture(autouse=True)
def cudnn(monkeypatch):
    monkeypatch.setattr(library, "find", lambda: "libcudnn.so.9")
    monkeypatch.setattr(library, "version", lambda: "9.19.0")


@functools.cache
def prepared_of(name, dtype=None):
    module, shapes = zoo.TORCH[name]
    return prepare(module, tuple(torch.zeros(shape) for shape in shapes), None, None, dtype)


def record_of(layer, schedule, time_us, **changes):
    values = {"spec": layer.spec, "pattern": SparsityPattern.of(layer.weight), "schedule": schedule}
    values |= {"times_us": (time_us,), "dense_times_us": (), "baseline": "", "library_times_us": {}}
    values |= {"target": target_json(CUDA), "fingerprint": fingerprint_of(CUDA), "decisions": {}}
    return make_record(**(values | changes))


def changes_us(prepared, in_nhwc):
    """Of all conversions in the model whose layers at the positions `in_nhwc` are in NHWC."""
    decisions = [
        replace(each, choice=Predicted(TF32, NHWC if index in in_nhwc else NCHW))
        for index, each in enumerate(decide(prepared.layers, CUDA, None))
    ]
    kernels = kernels_of(prepared.layers, decisions, CUDA)
    in_nhwc = results_in_nhwc(prepared, kernels)
    module = keep_nhwc(replace_convolutions(prepared.mod, kernels), in_nhwc, CUDA)
    total_us = 0.0
    for value in Graph.of(module).definitions.values():
        if is_call(value, "relax.call_tir") and value.args[0].name_hint.startswith("tvm_sparse_to_"):
            *_, n, c, h, w, dtype = value.args[0].name_hint.split("_")
            total_us += layout_change_us(LayoutChange((*map(int, (n, c, h, w)),), dtype, "nhwc"), gpu_info(CUDA))
    return total_us


@pytest.mark.parametrize("name", ["residual", "residual_two_convs", "two_consumers", "used_twice", "in_place"])
def test_no_division_is_faster(tmp_path, name, monkeypatch):
    # Of so small layers a floor would hide what the cut weighs.
    monkeypatch.setattr(choose_layouts, "tensor_core_floor_us", lambda *_: 0.1)
    prepared, choices = prepared_of(name), random.Random(name)
    found = set()
    positions = range(len(prepared.layers))
    divisions = [set(some) for size in range(len(positions) + 1) for some in itertools.combinations(positions, size)]
    costs_us = [changes_us(prepared, each) for each in divisions]
    for trial in range(12):
        log = TuningLog(tmp_path / f"{trial}.jsonl")
        nhwc_us, nchw_us = ([choices.uniform(1, 8) for _ in positions] for _ in range(2))
        for layer, fast_us, own_us in zip(prepared.layers, nhwc_us, nchw_us, strict=True):
            own_changes_us = conversions_us(layer.spec, gpu_info(CUDA))
            log.append(record_of(layer, TF32, fast_us + own_changes_us, decisions=NHWC))
            log.append(record_of(layer, "folded_cuda", own_us, dense_times_us=(50.0,), baseline=TF32))
        decisions = decide_together(prepared, CUDA, log, allow_tf32=True)
        chosen = {index for index, each in enumerate(decisions) if each.schedule == TF32}

        def total_us(division, fast=nhwc_us, own=nchw_us):
            times_us = sum(fast[index] if index in division else own[index] for index in positions)
            return times_us + costs_us[divisions.index(division)]

        assert total_us(chosen) <= min(map(total_us, divisions)) + 1e-3
        found.add(frozenset(chosen))
    assert len(found) > 1


def test_what_is_not_allowed_or_known_stays(tmp_path):
    prepared = prepared_of("residual")
    log = TuningLog(tmp_path / "log.jsonl")
    for layer in prepared.layers:
        log.append(record_of(layer, TF32, 4.0, decisions=NHWC))
        log.append(record_of(layer, "folded_cuda", 9.0, dense_times_us=(50.0,), baseline="dense_cudnn:fp32"))
    exact = decide_together(prepared, CUDA, log)
    assert exact == decide(prepared.layers, CUDA, log) and {each.schedule for each in exact} == {"folded_cuda"}
    rounded = decide_together(prepared, CUDA, log, allow_tf32=True)
    assert [(each.schedule, each.chosen, each.transferred) for each in rounded] == [(TF32, NHWC, False)] * 2
    assert all(each.reason.kind is Kind.IN_NHWC for each in rounded)
    host = resolve_target('{"kind":"llvm","num-cores":1}')
    assert decide_together(prepared, host, log, allow_tf32=True) == decide(prepared.layers, host, log, allow_tf32=True)


def test_a_layer_timed_in_nchw_alone_may_join_its_neighbours(tmp_path):
    """By what is left of cuDNN's time without its own conversions; kept where that is no gain."""
    prepared = prepared_of("residual")
    gpu = gpu_info(CUDA)
    for own_us, expected in ((90.0, TF32), (0.5, "folded_cuda")):
        log = TuningLog(tmp_path / f"{own_us}.jsonl")
        for layer in prepared.layers:
            converted_us = conversions_us(replace(layer.spec, residual=False), gpu)
            log.append(record_of(layer, TF32, 5.0 + converted_us, decisions=NCHW))
            log.append(record_of(layer, "folded_cuda", own_us, dense_times_us=(200.0,), baseline="dense_cudnn:fp32"))
        decisions = decide_together(prepared, CUDA, log, allow_tf32=True)
        assert {each.schedule for each in decisions} == {expected}
        if expected == TF32:
            assert [(each.record, each.chosen, each.transferred) for each in decisions] == [(None, NHWC, True)] * 2
            assert [each.time_us for each in decisions] == pytest.approx([5.0 * choose_layouts._SLOWER] * 2)
            assert decisions[0].record is None


@pytest.mark.parametrize("decisions", [NHWC, NCHW])
def test_conversions_are_taken_off_as_on_the_card_that_was_timed(tmp_path, decisions):
    """An H100, whose memory is slower than that of the H200 here."""
    h200, h100 = (
        resolve_target({"kind": "cuda", "arch": "sm_90", "model": f"NVIDIA {name}, 132 multiprocessors"})
        for name in ("H200", "H100 80GB HBM3")
    )
    prepared, log = prepared_of("two_consumers"), TuningLog(tmp_path / "log.jsonl")
    for layer in prepared.layers:
        log.append(record_of(layer, TF32, 90.0, decisions=decisions, target=target_json(h100)))
        log.append(record_of(layer, "folded_cuda", 200.0, dense_times_us=(400.0,), baseline="dense_cudnn:fp32"))
    converted_us = conversions_us(prepared.layers[0].spec, gpu_info(h100))
    found = decide_together(prepared, h200, log, allow_tf32=True)[0]
    expected_us = (90.0 - converted_us) * (1 if decisions == NHWC else choose_layouts._SLOWER)
    assert found.schedule == TF32 and found.time_us == pytest.approx(expected_us)


def test_what_was_timed_without_conversions_is_not_estimated(tmp_path):
    """Of two kernels in NHWC the one counts that takes less there, however long its conversions take."""
    prepared, log = prepared_of("two_consumers"), TuningLog(tmp_path / "log.jsonl")
    other = {**NHWC, "algorithm": "suggested_1"}
    for layer in prepared.layers:
        log.append(record_of(layer, TF32, 30.0, decisions=NHWC, unconverted_times_us=(8.0,)))
        log.append(record_of(layer, TF32, 31.0, decisions=other, unconverted_times_us=(7.0,)))
        log.append(record_of(layer, TF32, 20.0, decisions={**NHWC, "algorithm": "suggested_2"}))
        log.append(record_of(layer, "folded_cuda", 200.0, dense_times_us=(400.0,), baseline="dense_cudnn:fp32"))
    found = decide_together(prepared, CUDA, log, allow_tf32=True)
    assert [(each.chosen, each.time_us) for each in found] == [(other, 7.0)] * len(found)


def test_without_a_log_tensor_cores_work_in_their_own_layout():
    """Layers whose channels come in groups of 16 bytes."""
    for dtype, schedule in ((None, TF32), ("float16", FP16)):
        decisions = decide_together(prepared_of("two_consumers", dtype), CUDA, None, allow_tf32=True)
        suits = dtype is None
        assert [each.chosen == NHWC for each in decisions] == [suits] * 3
        assert {each.schedule for each in decisions} <= {schedule, "dense_cudnn"}
        assert all(each.transferred for each in decisions)


def test_the_minimum_cut_is_one():
    choices = random.Random(0)
    for _ in range(60):
        nodes = range(choices.randint(2, 7))
        pairs = [pair for pair in itertools.permutations(nodes, 2) if choices.random() < 0.5]
        edges = {pair: choices.choice([0.0, 1e-3, 1.0, 2.5, 40.0, math.inf]) for pair in pairs}
        edges[0, 1] = 1.0
        sides = [{0, *some} for size in nodes for some in itertools.combinations(nodes[2:], size)]

        def cost(side, edges=edges):
            return sum(value for (start, end), value in edges.items() if start in side and end not in side)

        least = min(map(cost, sides))
        if math.isfinite(least):
            side = first_side(edges, 0, 1)
            assert 1 not in side and cost({0, *side}) == pytest.approx(least, rel=1e-4, abs=1e-3)


class Image(torch.nn.Module):
    """A first layer with a pool behind it, which another layer reads."""

    def __init__(self, pool, *first):
        super().__init__()
        self.first, self.pool = torch.nn.Conv2d(3, 64, *first or (7, 2, 3)), pool
        self.next = torch.nn.Conv2d(64, 128, 3, padding=1)

    def forward(self, x):
        return self.next(self.pool(self.first(x).relu()))


def of_image(pool, *first, count=16):
    """The layers of such a model in float16, prepared and decided about."""
    prepared = prepare(Image(pool, *first).eval(), (torch.zeros(count, 3, 224, 224),), None, None, "float16")
    return prepared, decide_together(prepared, CUDA, None)


@pytest.mark.parametrize("pool", [torch.nn.MaxPool2d(3, 2, 1), torch.nn.MaxPool2d(3, 2, ceil_mode=True)])
def test_a_first_layer_writes_what_is_read(pool):
    """The outputs of the pool behind it in NHWC, without a conversion."""
    prepared, decisions = of_image(pool)
    assert [each.schedule for each in decisions] == ["first_cuda:fp16", FP16]
    kernels = kernels_of(prepared.layers, decisions, CUDA)
    in_nhwc = results_in_nhwc(prepared, kernels)
    module = keep_nhwc(replace_convolutions(prepared.mod, kernels, prepared.groups), in_nhwc, CUDA)
    made, spec = Graph.of(module).definitions, prepared.layers[1].spec
    (read,) = (each.args[1][0] for each in made.values() if "1_next_nhwc" in str(each.args[0]))
    assert made[read].args[0].name_hint == "tvm_sparse_0_first_to_nhwc"
    assert list(read.ty.shape) == [16, spec.h, spec.w, 64]


def test_an_image_takes_cudnn_longer_than_other_layers_of_its_size():
    """AlexNet's first layer: 86 us with its pool, where cuDNN's estimate is 48 and a network took 674 with it."""
    decisions = of_image(torch.nn.MaxPool2d(3, 2), 11, 4, 2, count=64)[1]
    assert [each.schedule for each in decisions] == ["first_cuda:fp16", FP16]


def test_without_a_pool_of_square_windows_another_kernel_computes_a_first_layer():
    """A convolution's own outputs take `first_cuda` as long as others."""
    assert of_image(torch.nn.MaxPool2d((2, 3)))[1][0].schedule != "first_cuda:fp16"


class Inverted(torch.nn.Module):
    """An expansion, a depthwise layer and a projection, as MobileNetV2 has them; with `twice` more reads the first."""

    def __init__(self, twice):
        super().__init__()
        self.wide, self.narrow = torch.nn.Conv2d(32, 192, 1), torch.nn.Conv2d(192, 32, 1)
        self.deep, self.twice = torch.nn.Conv2d(192, 192, 3, padding=1, groups=192), twice

    def forward(self, x):
        wide = torch.nn.functional.relu6(self.wide(x))
        deep = torch.nn.functional.relu6(self.deep(wide))
        return self.narrow(deep + wide if self.twice else deep)


@pytest.mark.parametrize("twice", [False, True])
def test_a_depthwise_layer_reads_and_writes_nhwc(twice):
    """Without a conversion between; it clips what it alone reads, so cuDNN makes no pass for that."""
    x = torch.zeros(64, 32, 28, 28)
    prepared = prepare(Inverted(twice).eval(), (x,), None, None, "float16")
    decisions = decide_together(prepared, CUDA, None)
    assert [each.schedule for each in decisions] == [FP16, "depthwise_cuda:fp16", FP16]
    kernels = kernels_of(prepared.layers, decisions, CUDA)
    in_nhwc = results_in_nhwc(prepared, kernels)
    module = keep_nhwc(replace_convolutions(prepared.mod, kernels, prepared.groups), in_nhwc, CUDA)
    made = Graph.of(cleaned(module)).definitions.values()
    called = [each.args[0].name_hint for each in made if is_call(each, "relax.call_tir")]
    layers = [name for name in called if not name.startswith("tvm_sparse_to_")]
    wide = "tvm_sparse_0_wide_nhwc" if twice else "tvm_sparse_0_wide_nhwc_unclipped"
    assert layers == [wide, "tvm_sparse_1_deep_nhwc", "tvm_sparse_2_narrow_nhwc"]
    # Of the model's input and output.
    assert len(called) == len(layers) + 2


def test_rows_of_a_linear_layer_have_one_layout(tmp_path):
    """Though a record of NHWC is the fastest: its kernel converts for itself."""
    model = torch.nn.Sequential(torch.nn.Conv2d(8, 8, 1), torch.nn.Flatten(), torch.nn.Linear(128, 64))
    model[2].weight.data *= torch.rand(64, 128) < 0.1
    prepared = prepare(model.eval(), (torch.zeros(4, 8, 4, 4),), None, None, "float16")
    log = TuningLog(tmp_path / "log.jsonl")
    for layer in prepared.layers:
        log.append(record_of(layer, FP16, 3.0, decisions=NHWC))
    decisions = decide_together(prepared, CUDA, log)
    kernels = kernels_of(prepared.layers, decisions, CUDA)
    in_nhwc = results_in_nhwc(prepared, kernels)
    assert prepared.groups[1].result not in in_nhwc
    module = keep_nhwc(replace_convolutions(prepared.mod, kernels, prepared.groups), in_nhwc, CUDA)
    called = [str(each) for each in Graph.of(module).definitions.values() if is_call(each, "relax.call_tir")]
    assert any("tvm_sparse_1_2," in each for each in called), called
