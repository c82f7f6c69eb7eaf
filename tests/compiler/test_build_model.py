"""From a model and a log to a compiled model: right numbers, right choices, and a sentence for each choice."""

import subprocess
import sys

import numpy as np
import onnx
import pytest
import torch
import zoo

from tvm_sparse.autotune.search.evolutionary_search import SharedModel, SpaceSearch
from tvm_sparse.compiler import build_model
from tvm_sparse.compiler.building import make_kernels
from tvm_sparse.compiler.building.verify import _Case
from tvm_sparse.compiler.plan.expected_gain import verdict_of
from tvm_sparse.compiler.plan.kernel_selection import decide
from tvm_sparse.compiler.plan.reasons import Kind
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.errors import BuildError, ModelError
from tvm_sparse.frontend.passes.find_convolutions import ConvLayer
from tvm_sparse.frontend.prepare import prepare
from tvm_sparse.logs.record import TuningRecord
from tvm_sparse.logs.tuning_log import TuningLog
from tvm_sparse.runtime.compiled_model import COLUMNS, WORDS
from tvm_sparse.schedules.lookup import find_space, make_kernel, spaces_of
from tvm_sparse.scheduling.decision_kinds import OneOf
from tvm_sparse.scheduling.kernel import kernel_of
from tvm_sparse.target.compatibility import device_of
from tvm_sparse.target.fingerprint import fingerprint_of
from tvm_sparse.target.resolve import resolve_target, target_json

pytestmark = pytest.mark.usefixtures("unoptimised")

TARGET = resolve_target(zoo.UNOPTIMISED)


@pytest.fixture(scope="module")
def prepared():
    module, shapes = zoo.TORCH["residual"]
    return prepare(module, torch.zeros(shapes[0]))


@pytest.fixture
def log(tmp_path):
    return TuningLog(tmp_path / "log.jsonl")


def record(layer, weight=None, schedule="folded_cpu", time_us=2.0, dense_time_us=8.0, **fields):
    weight = layer.weight if weight is None else weight
    fields = {
        "decisions": {},
        "status": "ok",
        "times_us": (time_us,),
        "dense_times_us": (dense_time_us,) if dense_time_us else (),
        "baseline": "dense_cpu" if dense_time_us else "",
        "error": 0.5,
        "target": target_json(TARGET),
        "fingerprint": fingerprint_of(TARGET),
        "seed": 0,
        **fields,
    }
    return TuningRecord(spec=layer.spec, pattern=SparsityPattern.of(weight), schedule=schedule, **fields)


def thinner(weight, density):
    """`weight` with only `density` of its entries left."""
    keep = np.random.default_rng(0).random(weight.shape) < density
    return np.where(keep, weight + 1, 0).astype(np.float32)


def run(compiled, name):
    module, shapes = zoo.TORCH[name]
    arrays = zoo.inputs_of(shapes)
    outputs = compiled(*arrays)
    for got, want in zip(
        [outputs] if len(compiled.signature.outputs) == 1 else outputs, zoo.run_torch(module, *arrays), strict=True
    ):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["residual", "two_consumers", "two_inputs", "classifier", "depthwise"])
def test_without_a_log_all_is_dense_and_right(name):
    module, shapes = zoo.TORCH[name]
    compiled = build_model.compile(module, tuple(torch.zeros(shape) for shape in shapes))
    run(compiled, name)
    assert {row["schedule"] for row in compiled.report()} == {"dense_cpu"}
    assert {row["reason"] for row in compiled.report()} == {"no record for this shape"}
    assert all(tuple(row) == COLUMNS + WORDS for row in compiled.report())


def test_onnx(tmp_path):
    onnx.save(zoo.ONNX["block"], tmp_path / "m.onnx")
    (x,) = zoo.inputs_of([zoo.X])
    compiled = build_model.compile(tmp_path / "m.onnx")
    assert [spec.name for spec in compiled.signature.inputs] == ["x"]
    np.testing.assert_allclose(compiled(x), zoo.run_onnx(zoo.ONNX["block"], x)[0], rtol=1e-4, atol=1e-4)


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
import subprocess
import sys

import numpy as np
from tvm_sparse.compiler import build_model as model
target = {"kind": "llvm", "opt-level": 0}
np.save(sys.argv[2], model.compile(sys.argv[1], target=target)(np.load(sys.argv[2])))
"""


def test_onnx_without_torch(tmp_path):
    onnx.save(zoo.ONNX["block"], tmp_path / "m.onnx")
    (x,) = zoo.inputs_of([zoo.X])
    np.save(tmp_path / "x.npy", x)
    arguments = [str(tmp_path / "m.onnx"), str(tmp_path / "x.npy")]
    subprocess.run([sys.executable, "-c", WITHOUT_TORCH, *arguments], check=True, timeout=120)
    want = zoo.run_onnx(zoo.ONNX["block"], x)[0]
    np.testing.assert_allclose(np.load(tmp_path / "x.npy"), want, rtol=1e-4, atol=1e-4)


def test_prepared_layers_have_names(prepared):
    assert [layer.name for layer in prepared.layers] == ["0", "3"]


def test_a_record_of_the_same_weight_is_used(prepared, log):
    for layer in prepared.layers:
        log.append(record(layer))
    decisions = decide(prepared.layers, TARGET, log)
    assert [decision.schedule for decision in decisions] == ["folded_cpu"] * 2
    assert not any(decision.transferred for decision in decisions)
    assert decisions[0].reason.kind is Kind.FASTER
    assert (decisions[0].time_us, decisions[0].dense_time_us) == (2, 8)
    run(build_model.build(prepared, decisions, TARGET), "residual")


def test_dense_where_dense_is_faster(prepared, log):
    log.append(record(prepared.layers[0], time_us=14.0, dense_time_us=12.1))
    log.append(record(prepared.layers[0], schedule="dense_cpu", time_us=11.0, dense_time_us=None))
    first, second = decide(prepared.layers, TARGET, log)
    assert (first.schedule, first.reason.kind) == ("dense_cpu", Kind.SLOWER)
    assert first.time_us == first.dense_time_us == 12.1
    assert (second.schedule, second.reason.kind) == ("dense_cpu", Kind.NO_RECORD)


def test_equal_times_run_dense(prepared, log):
    log.append(record(prepared.layers[0], time_us=8.0, dense_time_us=8.0))
    assert decide(prepared.layers, TARGET, log)[0].schedule == "dense_cpu"


def test_a_kernel_that_wins_only_at_times_is_not_taken(prepared, log):
    """Its median is the lower one, but another run may say otherwise."""
    times = {"times_us": (5.0, 6.0, 7.0, 9.0, 12.0), "dense_times_us": (7.5, 8.0, 8.0, 8.0, 8.5)}
    log.append(record(prepared.layers[0], **times))
    decision = decide(prepared.layers, TARGET, log)[0]
    assert (decision.schedule, decision.reason.kind) == ("dense_cpu", Kind.OVERLAP)


def test_decisions_go_by_times_with_cold_code(prepared, log):
    """Warm, the folded kernel is four times as fast as dense; its code has to be fetched each time."""
    layer = prepared.layers[0]
    log.append(record(layer, cold_times_us=(13.0,), dense_cold_times_us=(12.0,)))
    decision = decide([layer], TARGET, log)[0]
    assert (decision.schedule, decision.time_us, decision.reason.kind) == ("dense_cpu", 12, Kind.SLOWER)
    log.append(record(layer, schedule="csr_cpu", time_us=4.0, cold_times_us=(6.0,), dense_cold_times_us=(12.0,)))
    # Without cold times, however fast it is warm.
    log.append(record(layer, time_us=0.1))
    decision = decide([layer], TARGET, log)[0]
    assert (decision.schedule, decision.time_us, decision.dense_time_us) == ("csr_cpu", 6, 12)
    assert decision.reason.kind is Kind.FASTER


def test_a_record_without_its_baseline_is_compared_with_the_dense_record(prepared, log):
    layer = prepared.layers[0]
    log.append(record(layer, time_us=3.0, dense_time_us=None))
    assert decide([layer], TARGET, log)[0].reason.kind is Kind.NO_RECORD
    log.append(record(layer, schedule="dense_cpu", time_us=6.0, dense_time_us=None))
    assert decide([layer], TARGET, log)[0].reason.kind is Kind.FASTER


def test_records_of_another_machine_are_not_used(prepared, log):
    foreign = {**fingerprint_of(TARGET), "arch": "other"}
    log.append(record(prepared.layers[0], fingerprint=foreign))
    (decision, _) = decide(prepared.layers, TARGET, log)
    assert (decision.schedule, decision.reason.kind) == ("dense_cpu", Kind.NO_RECORD)


def test_transfer_is_said_and_verified(prepared, log):
    for layer in prepared.layers:
        log.append(record(layer, thinner(layer.weight, 0.4)))
    decisions = decide(prepared.layers, TARGET, log)
    assert all(decision.transferred for decision in decisions)
    compiled = build_model.build(prepared, decisions, TARGET)
    assert [row["schedule"] for row in compiled.report()] == ["folded_cpu"] * 2
    run(compiled, "residual")


def test_transfer_to_many_more_non_zeros_is_not_expected_to_win(prepared, log):
    layer = prepared.layers[0]
    log.append(record(layer, thinner(layer.weight, 0.05), time_us=2.0, dense_time_us=8.0))
    (decision,) = decide([layer], TARGET, log)
    assert (decision.schedule, decision.reason.kind) == ("dense_cpu", Kind.SLOWER)


@pytest.mark.parametrize(
    ("spec", "pruned", "wins"),
    [
        # Operators 9 and 8 of Table 2, from 0.2 to 0.3 and to 0.9: 3.4 times as long on an H200, and 1.03 times.
        (ConvSpec(64, 64, 224, 224, 64, 3, 3, padding=(1, 1, 1, 1)), 0.3, False),
        (ConvSpec(64, 3, 224, 224, 64, 3, 3, padding=(1, 1, 1, 1)), 0.9, True),
    ],
)
def test_on_a_gpu_time_need_not_grow_like_the_non_zeros(log, spec, pruned, wins):
    cuda = resolve_target('{"kind":"cuda","arch":"sm_90"}')
    layer = ConvLayer("conv", spec, thinner(np.ones(spec.weight_shape, np.float32), pruned), None)
    weight = thinner(layer.weight, 0.2)
    each = find_space("folded_cuda:multistage-224x32-pixels1", spec, SparsityPattern.of(weight), cuda)
    fields = {
        "decisions": each.starts()[0],
        "fingerprint": fingerprint_of(cuda),
    }
    log.append(record(layer, weight, each.name, time_us=1.0, dense_time_us=2.5, **fields))
    (decision,) = decide([layer], cuda, log)
    assert (decision.schedule == each.name) == wins
    assert wins or decision.schedule.startswith("dense")


def test_a_wrong_transferred_kernel_gives_way_to_dense(prepared, log, monkeypatch):
    for layer in prepared.layers:
        log.append(record(layer, thinner(layer.weight, 0.4)))
    true_kernel = kernel_of

    def wrong_kernel(each, schedule, weight):
        # Wrong for the second layer only, which is the one with a residual.
        adds = any(parameter.name == "residual" for parameter in each.func.params)
        return true_kernel(each, schedule, weight * 2 if adds and each.schedule.startswith("folded") else weight)

    monkeypatch.setattr(make_kernels, "kernel_of", wrong_kernel)
    # Another test may have built the same model.
    monkeypatch.setenv("TVM_SPARSE_CACHE_MIB", "0")
    compiled = build_model.build(prepared, decide(prepared.layers, TARGET, log), TARGET)
    first, second = compiled.report()
    assert first["schedule"] == "folded_cpu"
    assert second["schedule"] == "dense_cpu"
    assert second["reason"].startswith("dense, because the transferred kernel is wrong by")
    run(compiled, "residual")


def test_what_was_never_verified_is_verified_now(prepared, log, monkeypatch):
    """Imported records say nothing of their error: sparse, then dense ones are found wrong, and the default is left."""
    layer = prepared.layers[0]
    log.append(record(layer, error=None))
    name, other = other_dense(layer)
    log.append(record(layer, schedule=name, error=None, time_us=9.0, dense_time_us=None, decisions=other))
    true_kernel, made = kernel_of, []

    def wrong_kernel(each, schedule, weight):
        is_imported = each.schedule == "folded_cpu" or each.decisions_of(schedule) == other
        made.append((each.schedule, is_imported))
        return true_kernel(each, schedule, weight * 2 if is_imported else weight)

    monkeypatch.setattr(make_kernels, "kernel_of", wrong_kernel)
    # Another test may have built the same model.
    monkeypatch.setenv("TVM_SPARSE_CACHE_MIB", "0")
    compiled = build_model.build(prepared, decide(prepared.layers, TARGET, log), TARGET)
    assert [each for each in made if each[1]] == [("folded_cpu", True), ("dense_cpu", True)]
    assert compiled.report()[0]["reason"].startswith("dense, because the transferred kernel is wrong by")
    run(compiled, "residual")


def other_dense(layer):
    """A dense space in which something is decided, and decisions that are not its defaults."""
    found, _ = spaces_of(layer.spec, SparsityPattern.of(layer.weight), TARGET, ["dense_cpu"])
    each = next(each for each in found if each.starts()[0])
    default = each.starts()[0]
    name, choice = next((name, choice) for name, choice in each.choices.items() if isinstance(choice, OneOf))
    return each.name, {**default, name: next(value for value in choice.values if value != default[name])}


def test_a_trace_that_tvm_crashes_on_gives_way_to_dense(prepared, log, small_populations):
    layer = prepared.layers[0]
    each = find_space("generated_cpu", layer.spec, SparsityPattern.of(layer.weight), TARGET)
    (trace, *_) = SpaceSearch(each, TARGET, SharedModel(0), 1, trials=1, batch=1).propose()
    trace[1][0][1] = None
    log.append(record(layer, schedule="generated_cpu", trace=trace))
    compiled = build_model.build(prepared, decide(prepared.layers, TARGET, log), TARGET)
    reason = compiled.report()[0]["reason"]
    assert reason.startswith("dense, because schedule generated_cpu") and "killed by SIGSEGV" in reason
    run(compiled, "residual")


def test_a_kernel_that_leaves_an_element_unwritten_is_wrong(prepared):
    layer = prepared.layers[0]
    kernel = make_kernel("dense_cpu", layer.spec, layer.weight, TARGET)
    worst = _Case.of(layer, None).worst_error(lambda *arguments: None, kernel, "dense_cpu", device_of(TARGET))
    assert worst == np.inf


def test_a_trace_that_does_not_fit_gives_way_to_dense(prepared, log):
    layer = prepared.layers[0]
    log.append(record(layer, schedule="folded_cpu:no_such_variant"))
    log.append(record(layer, schedule="dense_cpu", trace=[[["Nonsense", [], [], []]], []], dense_time_us=None))
    compiled = build_model.build(prepared, decide(prepared.layers, TARGET, log), TARGET)
    row = compiled.report()[0]
    assert row["schedule"] == "dense_cpu"
    assert row["reason"].startswith("dense, because")
    run(compiled, "residual")


def test_another_machine_can_be_compiled_for_but_not_run(prepared):
    foreign = resolve_target({"kind": "llvm", "mcpu": "sapphirerapids", "mattr": ["+amx-fp16"]})
    compiled = build_model.build(prepared, decide(prepared.layers, foreign, None), foreign)
    with pytest.raises(BuildError, match="this machine cannot run it"):
        compiled(np.zeros(zoo.X, np.float32))


def test_transfer_needs_a_machine_to_verify_on(prepared, log):
    foreign = resolve_target({"kind": "llvm", "mcpu": "sapphirerapids", "mattr": ["+amx-fp16"]})
    fingerprint = fingerprint_of(foreign)
    layer = prepared.layers[0]
    log.append(record(layer, thinner(layer.weight, 0.4), fingerprint=fingerprint))
    compiled = build_model.build(prepared, decide(prepared.layers, foreign, log), foreign)
    assert "cannot be verified with this weight" in compiled.report()[0]["reason"]


def test_the_verdict_is_of_what_was_built(prepared, log):
    """Nothing is gained where the kernels that were chosen cannot be verified, and dense ones are in their place."""
    foreign = resolve_target({"kind": "llvm", "mcpu": "sapphirerapids", "mattr": ["+amx-fp16"]})
    layer = prepared.layers[0]
    log.append(record(layer, thinner(layer.weight, 0.4), fingerprint=fingerprint_of(foreign)))
    compilation = build_model.Compilation(prepared, foreign, log, build_model.Options(predict=False))
    assert verdict_of(compilation.plan).gaining == 1
    compiled = compilation.build()
    assert (compiled.verdict.gaining, compiled.verdict.speedup) == (0, 1)
    assert {row["speedup"] for row in compiled.report()} == {1}


def test_weights_that_are_not_finite_are_named():
    module = zoo.Chain(zoo.conv())
    with torch.no_grad():
        module[0].weight[0, 0, 0, 0] = np.inf
    with pytest.raises(ModelError, match="layer 0: weight"):
        build_model.compile(module, torch.zeros(zoo.X))
