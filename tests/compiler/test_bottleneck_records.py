"""Records of kernels that compute three layers: in logs, and what the plan makes of them."""

import pytest
from bottlenecks import prepared_of

from tvm_sparse.autotune.progress.task_progress import TaskProgress
from tvm_sparse.compiler.pipeline import Options, planned
from tvm_sparse.compiler.plan.reasons import Kind
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.cudnn import library
from tvm_sparse.logs.distill import best, distill
from tvm_sparse.logs.log_page import page
from tvm_sparse.logs.merge import merge
from tvm_sparse.logs.record import TuningRecord
from tvm_sparse.logs.tuning_log import TuningLog
from tvm_sparse.schedules.lookup import find_space, schedule_names, spaces_of
from tvm_sparse.target.fingerprint import fingerprint_of
from tvm_sparse.target.resolve import resolve_target, target_json

CUDA = resolve_target('{"kind":"cuda","arch":"sm_90"}')
SCHEDULE = "bottleneck_cuda"


@pytest.fixture(autouse=True)
def cudnn(monkeypatch):
    monkeypatch.setattr(library, "find", lambda: "libcudnn.so.9")
    monkeypatch.setattr(library, "version", lambda: "9.19.0")


def record_of(layer, time_us=90.0, **changes):
    times = dict.fromkeys(("times_us", "cold_times_us"), (time_us,) * 5)
    made = {"spec": layer.spec, "pattern": layer.pattern, "schedule": SCHEDULE, "decisions": {}, "status": "ok"} | times
    machine = {"target": target_json(CUDA), "fingerprint": fingerprint_of(CUDA)}
    return TuningRecord(**{**made, **machine, "error": 0.2, "seed": 0, **changes})


def log_of(path, *records):
    log = TuningLog(path)
    for record in records:
        log.append(record)
    return log


def joined(log, predict=True, prepared=None):
    """Layers, and what the kernel of the last says of the first."""
    plan = planned(prepared or prepared_of(), CUDA, log, Options(predict=predict))
    return [each.joins for each in plan.decisions], plan.decisions[0].reason


def last_layer(prepared=None):
    return (prepared or prepared_of()).layers[2]


def test_the_last_layer_says_what_a_record_is_of():
    last = last_layer()
    space = find_space(SCHEDULE, last.spec, last.pattern, CUDA)
    assert space.name == SCHEDULE and space.starts() == [{}] and space.estimate_us == pytest.approx(86, rel=0.05)
    # Nobody takes it for a kernel of the layer.
    assert SCHEDULE not in schedule_names(CUDA)
    assert SCHEDULE not in {each.name for each in spaces_of(last.spec, last.pattern, CUDA)[0]}
    for spec in (prepared_of().layers[0].spec, ConvSpec(64, 64, 56, 56, 256, 1, 1, bias=True, relu=True)):
        assert "last of three layers" in spaces_of(spec, last.pattern, CUDA, [SCHEDULE])[1][SCHEDULE]


@pytest.mark.parametrize(("time_us", "is_taken"), [(90.0, True), (900.0, False)])
@pytest.mark.parametrize("predict", [True, False])
def test_a_measured_time_comes_before_an_estimate(time_us, is_taken, predict, tmp_path):
    log = log_of(tmp_path / "log.jsonl", record_of(last_layer(), time_us))
    joins, reason = joined(log, predict)
    assert joins[:2] == (["0.third"] * 2 if is_taken else [None, None])
    if is_taken:
        assert reason.kind is Kind.FASTER and "measured: in one kernel with 0.third" in str(reason)
        assert "about 90 us" in str(reason)


def test_without_a_record_an_estimate_counts(tmp_path):
    for log in (None, log_of(tmp_path / "log.jsonl", record_of(last_layer(), status="wrong", times_us=()))):
        joins, reason = joined(log)
        assert joins[:2] == ["0.third"] * 2 and reason.kind is Kind.JOINED and "predicted: in one kernel" in str(reason)


def test_records_of_other_maps_and_machines_count_for_nothing(tmp_path):
    other = last_layer(prepared_of(size=28))
    elsewhere = fingerprint_of(CUDA) | {"arch": "sm_100"}
    records = record_of(other, 900.0), record_of(last_layer(), 900.0, fingerprint=elsewhere)
    assert joined(log_of(tmp_path / "log.jsonl", *records))[1].kind is Kind.JOINED


def test_a_record_is_kept_merged_and_distilled_but_is_none_of_the_layer(tmp_path):
    last = last_layer()
    one, two = log_of(tmp_path / "one.jsonl", record_of(last)), log_of(tmp_path / "two.jsonl", record_of(last, 95.0))
    merged = merge([one.path, two.path, one.path], tmp_path / "merged.jsonl.xz")
    log = TuningLog(tmp_path / "merged.jsonl.xz")
    assert log.records == merged.records and len(log.records) == 2 and not log.rejected
    here = fingerprint_of(CUDA)
    assert log.bottleneck(last.spec, here).time_us == 90.0
    assert distill(log.records) == [log.bottleneck(last.spec, here)] and best(log.records) == []
    assert log.lookup(last.spec, last.pattern, here) is log.dense(last.spec, here) is None
    assert [each.time_us for each in log.trials(last.spec, last.pattern, here)] == [90.0, 95.0]
    assert SCHEDULE in page(log)
    progress = TaskProgress([last.name], log.records, last.spec)
    assert progress.time_us is None and progress.done == 2


def test_a_damaged_record_is_refused_by_a_sentence_and_the_estimate_counts(tmp_path):
    path = tmp_path / "log.jsonl"
    line = record_of(last_layer(), 900.0).to_line()
    path.write_text(line.replace("900.0", "100.0") + "\n")
    log = TuningLog(path)
    (bad,) = log.rejected
    assert "the line does not match its checksum, so it is damaged" in bad.reason and log.records == []
    assert joined(log)[1].kind is Kind.JOINED
