"""cuDNN from tuning to an artifact, on a library that computes on the host: measured, recorded, chosen, called."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import zoo
from factories import make_record

from tvm_sparse.autotune.layer import tune_layer
from tvm_sparse.autotune.options import TuneOptions
from tvm_sparse.compiler import build_model, build_plan
from tvm_sparse.compiler.building import verify
from tvm_sparse.compiler.checking import layer_check
from tvm_sparse.compiler.plan.dense_fallback import all_dense, to_dense
from tvm_sparse.compiler.plan.kernel_selection import decide
from tvm_sparse.compiler.plan.reasons import Kind
from tvm_sparse.conv.error_bounds import EXACT
from tvm_sparse.conv.reference import AGREEMENT, TF32_AGREEMENT
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.cudnn import library
from tvm_sparse.errors import ArtifactError
from tvm_sparse.frontend.prepare import prepare
from tvm_sparse.logs.distill import best, distill
from tvm_sparse.logs.tuning_log import TuningLog
from tvm_sparse.measure.measurer import Measurer
from tvm_sparse.measure.outcome import Candidate, MeasureOptions
from tvm_sparse.measure.worker import Worker
from tvm_sparse.runtime import artifact, libraries
from tvm_sparse.runtime.compiled_model import CompiledModel
from tvm_sparse.schedules import dense_cudnn
from tvm_sparse.schedules.dense_cudnn import TRIED
from tvm_sparse.target.fingerprint import fingerprint_of
from tvm_sparse.target.resolve import resolve_target, target_json

HOST = resolve_target('{"kind":"llvm","num-cores":1}')
CUDA = resolve_target('{"kind":"cuda","arch":"sm_90"}')
FP32, TF32 = "dense_cudnn:fp32", "dense_cudnn:tf32"
SPEC = ConvSpec(1, 4, 6, 6, 4, 3, 3, padding=(1, 1, 1, 1), bias=True, relu=True)
WEIGHT = np.where(np.random.default_rng(0).random(SPEC.weight_shape) < 0.3, 1.37, 0).astype(np.float32)
MEASURE = MeasureOptions(repeats=2, min_repeat_ms=0.05, builders=1)
PLAN = {"layout": "nhwc", "algorithm": "implicit_precomp_gemm", "epilogue": "fused"}


@pytest.fixture
def worker(on_host, fake_folder, monkeypatch):
    """Candidates are built and run by workers that find the same library."""
    monkeypatch.setenv("CUDNN_PATH", str(fake_folder))
    path = Path(__file__).parents[1] / "support" / "cudnn_worker.py"
    monkeypatch.setattr(Worker, "command", (sys.executable, str(path)))


def test_a_layer_is_tuned_beside_both_precisions(worker, monkeypatch):
    """Every layout and epilogue once, whatever the budget; then a sparse kernel is timed beside the best of each."""
    monkeypatch.setattr(dense_cudnn, "SURPRISE", float("inf"))
    options = TuneOptions(trials=4, schedules=("folded_cpu",), measure=MEASURE)
    records = list(tune_layer(SPEC, WEIGHT, HOST, options))
    calls = [record for record in records if record.schedule in (FP32, TF32)]
    assert records[: len(calls)] == calls
    assert [record.status for record in calls] == ["ok"] * len(calls)
    assert len([record for record in calls if record.is_tf32]) == 3 + len(TRIED)
    assert len(calls) == 7 + len(TRIED)
    assert len(records) - len(calls) == 4
    sparse = [record for record in records if not record.is_dense]
    assert sparse
    for record in sparse:
        # The best in float32 is the baseline, whoever made it; TF32 is never.
        assert not record.baseline.endswith("tf32")
        assert {record.baseline, *record.library_times_us} >= {FP32, TF32}
        assert all(len(times) == MEASURE.repeats for times in record.library_times_us.values())
        assert type(record).from_line(record.to_line()) == record
    again = list(tune_layer(SPEC, WEIGHT, HOST, options, records))
    assert again == []


def test_tf32_meets_its_own_bound_and_only_that(worker, monkeypatch):
    with Measurer(SPEC, WEIGHT, HOST, MEASURE) as measurer:
        exact, rounded = measurer.measure([Candidate(name, PLAN) for name in (FP32, TF32)])
        assert exact.status == rounded.status == "ok"
        assert 0 < exact.error <= 1 and 0 < rounded.error <= 1
        monkeypatch.setattr("tvm_sparse.measure.measurer.arithmetic_of", lambda _: EXACT)
        (wrong,) = measurer.measure([Candidate(TF32, PLAN)])
        assert wrong.status == "wrong"


@pytest.fixture
def prepared():
    """A network of two convolutions, the first with a ReLU, the second with a residual and a ReLU."""
    module, shapes = zoo.TORCH["residual"]
    return prepare(module, tuple(torch.zeros(shape) for shape in shapes))


@pytest.fixture
def log(tmp_path):
    return TuningLog(tmp_path / "log.jsonl")


def record(layer, target=HOST, **changes):
    """A record of a layer: of a folded kernel beside cuDNN by default."""
    values = {
        "spec": layer.spec,
        "pattern": SparsityPattern.of(layer.weight),
        "schedule": "folded_cpu",
        "decisions": {},
        "times_us": (10.0,),
        "dense_times_us": (21.0,),
        "baseline": FP32,
        "library_times_us": {TF32: [13.0]},
        "target": target_json(target),
        "fingerprint": fingerprint_of(target),
    }
    return make_record(**(values | changes))


def alone(layer, schedule, time_us, **changes):
    """A record of a dense kernel."""
    fields = {"dense_times_us": (), "baseline": "", "library_times_us": {}, "decisions": PLAN} | changes
    return record(layer, schedule=schedule, times_us=(time_us,), **fields)


def decision_of(log, layer, **options):
    return decide([layer], HOST, log, **options)[0]


def test_decisions_compare_with_what_is_allowed(on_host, prepared, log):
    layer = prepared.layers[0]
    log.append(record(layer))
    found = decision_of(log, layer)
    assert (found.schedule, found.dense_time_us, found.reason.kind) == ("folded_cpu", 21, Kind.FASTER)
    # What is allowed and faster is what counts.
    found = decision_of(log, layer, allow_tf32=True)
    assert (found.dense_time_us, found.reason.kind) == (13, Kind.FASTER)


def test_tf32_is_chosen_only_where_it_is_allowed(on_host, prepared, log):
    layer = prepared.layers[0]
    log.append(alone(layer, FP32, 21.0))
    log.append(alone(layer, TF32, 4.0))
    assert decision_of(log, layer).schedule == FP32
    assert decision_of(log, layer, allow_tf32=True).schedule == TF32
    log.append(record(layer, library_times_us={TF32: [5.0]}))
    found = decision_of(log, layer)
    assert (found.schedule, found.reason.kind) == ("folded_cpu", Kind.FASTER)
    found = decision_of(log, layer, allow_tf32=True)
    assert (found.schedule, found.time_us, found.reason.kind) == (TF32, 5, Kind.SLOWER)
    assert not found.transferred


def test_the_baseline_that_is_faster_is_what_runs(on_host, prepared, log):
    """Though the log has no record of it alone, and one of a slower dense kernel."""
    layer = prepared.layers[0]
    log.append(alone(layer, "dense_cpu", 30.0, decisions={}))
    log.append(record(layer, dense_times_us=(9.0,), library_times_us={TF32: [8.0]}))
    found = decision_of(log, layer)
    assert (found.schedule, found.time_us, found.reason.kind) == (FP32, 9, Kind.SLOWER)
    assert found.transferred and found.chosen is None
    assert decision_of(log, layer, allow_tf32=True).schedule == TF32
    log.append(alone(layer, FP32, 9.5))
    found = decision_of(log, layer)
    assert (found.schedule, found.transferred, found.chosen) == (FP32, False, PLAN)
    assert to_dense(found, HOST, "it is wrong").record is None


def test_times_with_cold_code_count_for_libraries_too(on_host, prepared, log):
    layer = prepared.layers[0]
    cold = {"cold_times_us": (12.0,), "dense_cold_times_us": (24.0,), "library_cold_times_us": {TF32: [18.0]}}
    log.append(record(layer, **cold))
    found = decision_of(log, layer)
    assert (found.time_us, found.dense_time_us, found.reason.kind) == (12, 24, Kind.FASTER)


def test_what_this_machine_cannot_run_is_neither_chosen_nor_to_be_beaten(on_host, prepared, log, monkeypatch):
    layer = prepared.layers[0]
    log.append(alone(layer, FP32, 5.0))
    log.append(alone(layer, "dense_cpu", 30.0, decisions={}))
    log.append(record(layer, dense_times_us=(5.0,), library_times_us={TF32: [3.0]}))
    assert decision_of(log, layer).schedule == FP32
    monkeypatch.setattr(library, "find", lambda: None)
    found = decision_of(log, layer)
    assert (found.schedule, found.dense_time_us, found.reason.kind) == ("folded_cpu", 30, Kind.FASTER)


def run(compiled):
    module, shapes = zoo.TORCH["residual"]
    arrays = zoo.inputs_of(shapes)
    return compiled(*arrays), zoo.run_torch(module, *arrays)[0]


@pytest.mark.parametrize("allow_tf32", [False, True])
def test_a_model_calls_it_and_its_artifact_says_so(on_host, prepared, log, tmp_path, allow_tf32):
    for layer in prepared.layers:
        for schedule, time_us in ((FP32, 20.0), (TF32, 10.0)):
            log.append(alone(layer, schedule, time_us))
    decisions = decide(prepared.layers, HOST, log, allow_tf32)
    compiled = build_model.build(prepared, decisions, HOST)
    assert {row["schedule"] for row in compiled.report()} == {TF32 if allow_tf32 else FP32}
    found, expected = run(compiled)
    agreement = layer_check.agreement_of(row["schedule"] for row in compiled.report())
    assert agreement == (TF32_AGREEMENT if allow_tf32 else AGREEMENT)
    assert layer_check.relative_difference(found, expected) <= agreement
    folder = artifact.save(compiled, tmp_path / "net.sparse")
    assert json.loads((folder / "manifest.json").read_text())["libraries"] == {"cudnn": on_host.library.version}
    on_host.reset()
    np.testing.assert_array_equal(run(artifact.load(folder))[0], found)
    assert on_host.names()


def test_an_artifact_that_calls_it_is_refused_without_it(on_host, prepared, log, tmp_path, monkeypatch):
    for layer in prepared.layers:
        log.append(alone(layer, FP32, 20.0))
    compiled = build_model.build(prepared, decide(prepared.layers, HOST, log), HOST)
    folder = artifact.save(compiled, tmp_path / "net.sparse")
    monkeypatch.setattr(library, "find", lambda: None)
    with pytest.raises(ArtifactError) as caught:
        artifact.load(folder)
    assert str(caught.value).startswith(
        f"{folder}: calls cuDNN 9, which was not found here (it was made with 9.19.0); pip install nvidia-cudnn-cu13"
    )


def test_artifacts_without_libraries_need_none(prepared, tmp_path, monkeypatch):
    monkeypatch.setattr(library, "find", lambda: None)
    decisions = all_dense(decide(prepared.layers, HOST, None), HOST, "this is a test")
    folder = artifact.save(build_model.build(prepared, decisions, HOST), tmp_path / "net.sparse")
    assert isinstance(artifact.load(folder), CompiledModel)
    assert json.loads((folder / "manifest.json").read_text())["libraries"] == {}


def test_an_unknown_library_is_a_sentence():
    with pytest.raises(ArtifactError, match="calls a library that this tvm-sparse does not know, found cublas"):
        libraries.require("net.sparse", {"cublas": "13.0"})


def test_untuned_layers_call_it_if_they_can(on_host, prepared, monkeypatch):
    """By default, where it is there; what it refuses goes to the kernel that serves everything."""
    decisions = decide(prepared.layers, HOST, None)
    assert [(each.schedule, each.transferred) for each in decisions] == [("dense_cudnn", True)] * 2
    compiled = build_model.build(prepared, decisions, HOST)
    assert [row["schedule"] for row in compiled.report()] == ["dense_cudnn"] * 2
    on_host.fail("cudnnConvolutionBiasActivationForward", 3000)
    compiled = build_model.build(prepared, decisions, HOST)
    for row in compiled.report():
        assert row["schedule"] == "dense_cpu"
        assert row["reason"].startswith("dense, because convolution ") and "CUDNN_STATUS_NOT_SUPPORTED" in row["reason"]
    assert compiled.libraries == {}
    found, expected = run(compiled)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_dense_kernels_give_way_in_turn(on_host, prepared, log):
    layer = prepared.layers[0]
    log.append(alone(layer, FP32, 20.0))
    log.append(record(layer))
    steps = [decision_of(log, layer)]
    while len(steps) < 4:
        steps.append(to_dense(steps[-1], HOST, "this is a test"))
    assert [each.schedule for each in steps] == ["folded_cpu", FP32, "dense_cudnn", "dense_cpu"]
    assert [each.record is not None for each in steps] == [True, True, False, False]


def test_without_a_record_a_dense_layer_runs_in_what_is_allowed(on_host, prepared):
    """TF32 where the user allows it, as torch does by default."""
    layer = prepared.layers[0]
    for allow_tf32, expected in ((False, "dense_cudnn"), (True, TF32)):
        (decision,) = decide([layer], HOST, None, allow_tf32)
        assert (decision.schedule, decision.record, decision.transferred) == (expected, None, True)
        assert to_dense(decision, HOST, "this is a test").schedule == "dense_cpu"
    compiled = build_model.build(prepared, decide(prepared.layers, HOST, None, allow_tf32=True), HOST)
    assert [row["schedule"] for row in compiled.report()] == [TF32] * 2


def test_tf32_is_verified_and_checked_by_its_bound(on_host, prepared, log, monkeypatch):
    """Imported records say nothing of their error, so that their kernels are verified when a model is built."""
    for layer in prepared.layers:
        log.append(alone(layer, TF32, 10.0, error=None))
    decisions = decide(prepared.layers, HOST, log, allow_tf32=True)
    assert all(each.transferred for each in decisions)
    compiled = build_model.build(prepared, decisions, HOST)
    assert [row["schedule"] for row in compiled.report()] == [TF32] * 2
    exposed = layer_check.Exposed.of(prepared)
    model = build_model.build(exposed.prepared, decisions, HOST)
    outputs = model(*zoo.inputs_of(zoo.TORCH["residual"][1]))
    schedules = [row["schedule"] for row in model.report()]
    assert [each.verdict for each in exposed.check_layers(outputs, schedules, None)] == ["ok"] * 2
    # Under the name of an exact kernel the same results are wrong.
    assert {each.verdict for each in exposed.check_layers(outputs, [FP32] * 2, None)} == {"wrong"}
    monkeypatch.setattr(verify, "arithmetic_of", lambda _: EXACT)
    compiled = build_model.build(prepared, decisions, HOST)
    assert TF32 not in {row["schedule"] for row in compiled.report()}


def test_a_log_keeps_the_best_of_either_precision(prepared, log):
    layer = prepared.layers[0]
    for schedule, time_us in ((FP32, 20.0), (FP32, 25.0), (TF32, 9.0), (TF32, 10.0)):
        log.append(alone(layer, schedule, time_us, seed=int(time_us)))
    log.append(record(layer))
    kept = {(each.schedule, each.time_us) for each in distill(log.records)}
    assert kept == {("folded_cpu", 10), (FP32, 20), (TF32, 9)}
    assert [each.schedule for each in best(log.records)] == ["folded_cpu"]


def test_without_a_gpu_code_for_one_does_not_call_it_untested(fake, prepared):
    """cuDNN is installed with torch also where no GPU is."""
    layer = replace(prepared.layers[0])
    (decision,) = decide([layer], CUDA, None)
    assert decision.schedule == "dense_cudnn"
    if not verify.why_not_here(CUDA):
        pytest.skip("needs a machine without a GPU")
    kernels = build_plan.kernels_of([layer], [decision], CUDA)
    wrong = verify.verify([layer], [decision], kernels, None, CUDA)
    assert wrong[layer.name].startswith("it cannot be verified with this weight")
    assert to_dense(decision, CUDA, wrong[layer.name]).schedule == "dense_cuda"
