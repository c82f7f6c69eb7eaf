"""The tuning log: loses nothing, mixes nothing, and uses a record only where it holds."""

import json
import lzma
import math
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from factories import FINGERPRINT, SPEC, make_record, make_weight, newer_line
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from killed import leave_staging

from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.errors import LogError
from tvm_sparse.logs.distill import best, distill
from tvm_sparse.logs.merge import merge, write
from tvm_sparse.logs.tuning_log import TuningLog

# Appends argv[3] records with seeds from argv[2] on, and says so after each.
WRITER = """
import sys
from factories import make_record
from tvm_sparse.logs.tuning_log import TuningLog

log, first, count = TuningLog(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
trace = [["x" * 50] * 100]
for seed in range(first, first + count):
    log.append(make_record(seed=seed, decisions={}, trace=trace))
    print(seed, flush=True)
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "log.jsonl"


def start_writer(path, first, count):
    command = [sys.executable, "-c", WRITER, str(path), str(first), str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1] / "support")


def seeds(log):
    return [record.seed for record in log.records]


def fill(path, records):
    log = TuningLog(path)
    for record in records:
        log.append(record)
    return log


def pattern(density=0.1, seed=0):
    return SparsityPattern.of(make_weight(density, seed))


def test_missing_file_is_an_empty_log_until_the_first_append(tmp_path):
    path = tmp_path / "a" / "b" / "log.jsonl"
    log = TuningLog(path)
    assert (log.records, log.rejected, log.stats()["records"]) == ([], [], 0)
    assert log.quarantine() == 0
    assert not path.parent.exists()
    log.append(make_record())
    assert log.records == [make_record()] == TuningLog(str(path)).records


def test_refresh_sees_other_writers(path):
    first, second = TuningLog(path), TuningLog(path)
    second.append(make_record(seed=1))
    assert seeds(first) == []
    first.refresh()
    assert seeds(first) == [1]


@pytest.mark.parametrize("tail", ["", "\n", '\n{"schema":1,"spec', "\n\0\0\0"], ids=repr)
def test_append_after_a_torn_end(path, tail):
    path.write_text(make_record(seed=1).to_line() + tail)
    TuningLog(path).append(make_record(seed=2))
    log = TuningLog(path)
    assert seeds(log) == [1, 2]
    assert len(log.rejected) == (len(tail) > 1)
    assert path.read_bytes().endswith(b"\n")


def test_record_that_is_not_json_leaves_the_file_alone(path):
    with pytest.raises(LogError, match="plain JSON"):
        TuningLog(path).append(make_record(decisions={"x": {1, 2}}))
    assert not path.exists()


BAD_LINES = [
    b"",
    b"garbage",
    b"\0" * 10,
    b"\xff\xfe",
    b'{"a":1}',
    make_record().to_line()[:200].encode(),
    make_record().to_line().replace("12.5", "NaN").encode(),
    make_record().to_line().replace("12.5", "-12.5").encode(),
]


def test_bad_lines_are_reported_and_the_rest_kept(path):
    good = make_record(seed=5).to_line().encode()
    path.write_bytes(b"\n".join([good, *BAD_LINES, make_record(seed=6).to_line().encode()]))
    before = path.read_bytes()
    log = TuningLog(path)
    assert seeds(log) == [5, 6]
    assert [line.line_number for line in log.rejected] == list(range(2, 2 + len(BAD_LINES)))
    assert all(line.reason and line.path == path for line in log.rejected)
    assert path.read_bytes() == before
    assert sorted(path.parent.iterdir()) == [path]


def test_quarantine_moves_bad_lines_only(path):
    newer = newer_line(seed=3).encode()
    good = make_record(seed=5).to_line().encode()
    path.write_bytes(b"\n".join([*BAD_LINES, newer, good]))
    path.chmod(0o640)
    log = TuningLog(path)
    assert log.rejected[-1].newer
    assert "newer tvm-sparse" in log.rejected[-1].reason
    assert log.quarantine() == len(BAD_LINES)
    assert path.read_bytes() == newer + b"\n" + good + b"\n"
    assert path.stat().st_mode & 0o777 == 0o640
    assert seeds(log) == [5]
    rejected = [json.loads(line) for line in path.with_name("log.jsonl.rejected").read_text().splitlines()]
    assert [row["line"] for row in rejected] == list(range(1, 1 + len(BAD_LINES)))
    assert rejected[1]["text"] == "garbage"
    assert log.quarantine() == 0
    assert len(list(path.parent.iterdir())) == 2


def test_appends_meet_the_file_that_quarantine_put_in_place(path):
    path.write_bytes(b"garbage\n" * 50)
    writers = [start_writer(path, 100 * i, 30) for i in range(2)]
    log = TuningLog(path)
    while any(writer.poll() is None for writer in writers):
        with path.open("ab") as file:
            file.write(b"\n")
        log.quarantine()
    for writer in writers:
        writer.communicate()
        assert writer.returncode == 0
    log.refresh()
    assert sorted(seeds(log)) == [*range(30), *range(100, 130)]


def test_fuzzed_bytes_lose_no_untouched_record(path):
    lines = [make_record(seed=seed).to_line().encode() for seed in range(6)]
    whole = b"\n".join(lines) + b"\n"
    rng = random.Random(0)
    for case in range(300):
        data = bytearray(whole)
        if case % 3 == 0:
            del data[rng.randrange(len(data)) :]
        for _ in range(rng.randrange(1, 4)):
            if data:
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
        untouched = set(bytes(data).split(b"\n")) & set(lines)
        log = TuningLog(path)
        # Nothing is lost, and nothing that was changed is believed.
        assert untouched == {record.to_line().encode() for record in log.records}
        assert len(log.records) + len(log.rejected) <= data.count(b"\n") + 1


def test_eight_writers_at_once(path):
    writers = [start_writer(path, 1000 * i, 50) for i in range(8)]
    for writer in writers:
        writer.communicate(timeout=60)
        assert writer.returncode == 0
    log = TuningLog(path)
    assert log.rejected == []
    assert sorted(seeds(log)) == [1000 * i + j for i in range(8) for j in range(50)]


@pytest.mark.parametrize("seed", range(3))
def test_killed_writer_loses_at_most_its_last_line(path, seed):
    writer = start_writer(path, 0, 100_000)
    writer.stdout.readline()
    time.sleep(random.Random(seed).uniform(0, 0.2))
    writer.send_signal(signal.SIGKILL)
    written = [0, *map(int, writer.communicate()[0].split())]
    log = TuningLog(path)
    log.append(make_record(seed=-1))
    log.refresh()
    # The last append may have reached the file before its message reached the pipe.
    assert seeds(log) in ([*written, -1], [*written, written[-1] + 1, -1])
    assert len(log.rejected) <= 1


def test_full_disk_leaves_the_file_as_before(path):
    fill(path, [make_record()])
    before = path.read_bytes()
    # A limit on the file's size makes the write short, as a full disk does.
    code = f"""
import resource, sys
from factories import make_record
from tvm_sparse.errors import LogError
from tvm_sparse.logs.tuning_log import TuningLog
log = TuningLog(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, ({len(before) + 100},) * 2)
try:
    log.append(make_record(seed=8))
except LogError as error:
    print(error, len(log.records))
"""
    command = [sys.executable, "-c", code, str(path)]
    found = subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[1] / "support"
    )
    assert "the disk is full" in found.stdout
    assert found.stdout.endswith(" 1\n")
    assert path.read_bytes() == before


def test_read_only_layers(path, tmp_path):
    shipped, packed = tmp_path / "shipped.jsonl", tmp_path / "packed.jsonl.xz"
    fill(shipped, [make_record(seed=1), make_record(seed=2)])
    write(packed, [make_record(seed=2), make_record(seed=3)])
    before = shipped.read_bytes(), packed.read_bytes()
    log = TuningLog(path, shipped, packed)
    assert seeds(log) == [1, 2, 3]
    log.append(make_record(seed=4))
    log.quarantine()
    assert (shipped.read_bytes(), packed.read_bytes()) == before
    assert seeds(TuningLog(path)) == [4]
    with pytest.raises(LogError, match="missing"):
        TuningLog(path, tmp_path / "missing.jsonl")


def test_files_that_cannot_be_used_are_log_errors(tmp_path):
    with pytest.raises(LogError, match="directory"):
        TuningLog(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(LogError, match="cannot be used"):
        TuningLog(tmp_path / "file" / "log.jsonl").append(make_record())


def test_compressed_log_is_read_only(tmp_path):
    path = tmp_path / "log.jsonl.xz"
    with pytest.raises(LogError, match="read-only"):
        TuningLog(path).append(make_record())
    assert not path.exists()
    path.write_bytes(lzma.compress(b"garbage\n" + make_record().to_line().encode()))
    log = TuningLog(path)
    assert log.records == [make_record()]
    assert log.rejected[0].text == "garbage"
    with pytest.raises(LogError, match="read-only"):
        log.quarantine()


def test_a_compressed_log_unpacks_to_no_more_than_memory_holds(tmp_path, monkeypatch):
    path = tmp_path / "log.jsonl.xz"
    write(path, [make_record(seed=seed) for seed in range(4)])
    monkeypatch.setattr("tvm_sparse.logs.log_file.MAX_BYTES", 1 << 10)
    log = TuningLog(path)
    assert log.records == []
    assert "unpacks to more than" in log.rejected[0].reason


def test_a_killed_quarantine_leaves_nothing_behind(path):
    path.write_text("garbage\n")
    leave_staging(path.parent)
    TuningLog(path).quarantine()
    assert sorted(each.name for each in path.parent.iterdir()) == ["log.jsonl", "log.jsonl.rejected"]
    leave_staging(path.parent)
    TuningLog(path).quarantine()
    assert sorted(each.name for each in path.parent.iterdir()) == ["log.jsonl", "log.jsonl.rejected"]


@pytest.mark.parametrize("damage", [b"", b"no xz at all"])
def test_damaged_compressed_log_is_rejected(tmp_path, damage):
    path = tmp_path / "log.jsonl.xz"
    path.write_bytes(damage or lzma.compress(make_record().to_line().encode())[:-30])
    log = TuningLog(path)
    assert log.records == []
    assert "damaged" in log.rejected[0].reason


def test_records_of_schedules_that_are_gone_stay_and_serve_nobody(path):
    log = TuningLog(path)
    log.append(make_record(schedule="pair_cuda", seed=1))
    log.append(make_record(schedule="dense_cpu", seed=2))
    weight = make_record().pattern
    assert log.lookup(SPEC, weight, FINGERPRINT) is None
    assert [each.schedule for each in log.trials(SPEC, weight, FINGERPRINT)] == ["dense_cpu"]
    assert len(TuningLog(path).records) == 2


def test_lookup_prefers_values_then_mask_then_density(path):
    wanted = pattern(0.1)
    other_values = SparsityPattern.of(make_weight(0.1) * 2)
    log = TuningLog(path)
    assert log.lookup(SPEC, wanted, FINGERPRINT) is None

    log.append(make_record(seed=1, pattern=pattern(0.3, 1), times_us=(1.0,)))
    log.append(make_record(seed=2, pattern=pattern(0.15, 1), times_us=(9.0,)))
    log.append(make_record(seed=3, pattern=pattern(0.15, 2), times_us=(8.0,)))
    log.append(make_record(seed=4, pattern=pattern(0.05, 2), times_us=(2.0,)))
    found = log.lookup(SPEC, wanted, FINGERPRINT)
    assert (found.record.seed, found.how, found.note) == (3, "density", "transferred from density 0.149")

    log.append(make_record(seed=5, pattern=other_values, times_us=(20.0,)))
    log.append(make_record(seed=6, pattern=other_values, times_us=(19.0,)))
    found = log.lookup(SPEC, wanted, FINGERPRINT)
    assert (found.record.seed, found.how) == (6, "mask")

    log.append(make_record(seed=7, pattern=wanted, times_us=(30.0, 50.0, 31.0)))
    log.append(make_record(seed=8, pattern=wanted, times_us=(29.0, 99.0, 99.0)))
    found = log.lookup(SPEC, wanted, FINGERPRINT)
    assert (found.record.seed, found.how) == (7, "values")
    assert TuningLog(path).lookup(SPEC, wanted, FINGERPRINT) == found
    assert log.lookup(SPEC, wanted, FINGERPRINT, own=False).how == "mask"

    # A schedule that was not tried for this weight, and is clearly faster for another of its density.
    for seed, of, schedule, time_us, expected in (
        (9, pattern(0.1, 1), "csr_cpu", 30.0, (7, "values")),
        (10, pattern(0.15, 1), "csr_cpu", 8.0, (7, "values")),
        (11, pattern(0.1, 1), "csr_cpu", 20.0, (11, "density")),
        (12, other_values, "vector_cpu", 17.0, (12, "mask")),
        (13, wanted, "vector_cpu", 40.0, (11, "density")),
        (14, wanted, "csr_cpu", 40.0, (7, "values")),
    ):
        log.append(make_record(seed=seed, pattern=of, schedule=schedule, times_us=(time_us,)))
        found = log.lookup(SPEC, wanted, FINGERPRINT)
        assert (found.record.seed, found.how) == expected
        # A kernel that does not fit the weight is none.
        assert log.lookup(SPEC, wanted, FINGERPRINT, growth=lambda _: math.inf).record.seed == 7


def test_a_kernel_for_weights_without_zeros_serves_others_where_it_is_clearly_faster(path):
    wanted, whole = pattern(0.5), SparsityPattern.of(np.ones(SPEC.weight_shape, np.float32))
    log = TuningLog(path)
    log.append(make_record(seed=1, pattern=whole, schedule="slice_cuda", times_us=(50.0,)))
    # Alone it is none: what is predicted for these zeros may be faster.
    assert log.lookup(SPEC, wanted, FINGERPRINT) is None
    log.append(make_record(seed=2, pattern=wanted, times_us=(54.0,)))
    assert log.lookup(SPEC, wanted, FINGERPRINT).record.seed == 2
    log.append(make_record(seed=3, pattern=whole, schedule="folded_cuda", times_us=(10.0,)))
    assert log.lookup(SPEC, wanted, FINGERPRINT).record.seed == 2
    log.append(make_record(seed=4, pattern=whole, schedule="plane_cuda", times_us=(40.0,)))
    found = log.lookup(SPEC, wanted, FINGERPRINT)
    assert (found.record.seed, found.how, found.note) == (4, "density", "tuned for a weight without zeros")
    assert log.lookup(SPEC, whole, FINGERPRINT).how == "values"


def test_a_newer_schema_is_a_clear_error(path):
    path.write_text(f"{make_record().to_line()}\n{newer_line()}\n")
    log = TuningLog(path)
    with pytest.raises(LogError, match=r"log.jsonl, line 2: .*schema 4; allowed: up to 3; upgrade tvm-sparse"):
        log.require_known_schema()
    path.write_text(f"{make_record().to_line()}\ngarbage\n")
    TuningLog(path).require_known_schema()


OTHER_SPECS = [
    *({name: 2 * getattr(SPEC, name)} for name in ("n", "c", "h", "w", "k")),
    {"r": 1},
    {"s": 1},
    {"stride": (2, 1)},
    {"padding": (1, 1, 1, 2)},
    {"dilation": (1, 2)},
    {"groups": 2},
    {"bias": False},
    {"residual": True},
    {"relu": True},
]


@pytest.mark.parametrize("change", OTHER_SPECS, ids=str)
def test_one_field_of_the_convolution_decides(path, change):
    spec = replace(SPEC, **change)
    weight = SparsityPattern.of(make_weight(spec=spec))
    log = fill(path, [make_record(spec=spec, pattern=weight), make_record(spec=spec, pattern=weight, schedule="dense")])
    assert log.lookup(SPEC, pattern(), FINGERPRINT) is None
    assert log.dense(SPEC, FINGERPRINT) is None
    assert log.trials(SPEC, pattern(), FINGERPRINT) == []
    assert log.lookup(spec, weight, FINGERPRINT).how == "values"


@pytest.mark.parametrize("key", ["kind", "arch", "threads", "tvm"])
def test_one_field_of_the_machine_decides_and_the_reason_is_said(path, key):
    other = FINGERPRINT | {key: "other"}
    log = fill(path, [make_record(), make_record(schedule="dense_cpu")])
    assert log.lookup(SPEC, pattern(), other) is None
    assert log.dense(SPEC, other) is None
    assert log.trials(SPEC, pattern(), other) == []
    for reasons in (log.ignored(SPEC, pattern(), other), log.ignored_trials(SPEC, pattern(), other)):
        if key == "kind":
            # Nobody expects a CPU's records to serve a GPU.
            assert reasons == []
            continue
        assert len(reasons) == 1
        assert reasons[0].startswith(f"2 records of {SPEC.key} ignored: made for ")
        assert reasons[0].endswith(f" {FINGERPRINT[key]}, here it is other")


def test_another_structure_is_ignored_and_said(path):
    vectors = make_weight(0.1)
    vectors[:] = vectors[:1]
    log = fill(path, [make_record(pattern=SparsityPattern.of(vectors))])
    assert log.lookup(SPEC, pattern(), FINGERPRINT) is None
    (reason,) = log.ignored(SPEC, pattern(), FINGERPRINT)
    assert reason == f"1 record of {SPEC.key} ignored: made for structure vector8, this weight is unstructured"


def test_trials_of_other_weights_are_counted_apart(path):
    log = fill(path, [make_record(), make_record(pattern=pattern(0.2)), make_record(schedule="dense_cpu")])
    assert log.ignored(SPEC, pattern(), FINGERPRINT) == []
    (reason,) = log.ignored_trials(SPEC, pattern(), FINGERPRINT)
    assert reason == f"1 record of {SPEC.key} ignored: made for other weights"
    # A search says nothing of trials in files that nobody named, such as those that are shipped for other machines.
    shipped = TuningLog(path.with_name("new.jsonl"), unnamed=[path])
    assert shipped.ignored_trials(SPEC, pattern(), FINGERPRINT) == []
    assert shipped.lookup(SPEC, pattern(), FINGERPRINT) is not None


def test_of_equal_times_the_order_of_lines_decides_nothing(tmp_path):
    records = [make_record(seed=seed, schedule=name) for seed in range(4) for name in ("folded_cpu", "dense_cpu")]
    one, other = fill(tmp_path / "a.jsonl", records), fill(tmp_path / "b.jsonl", reversed(records))
    assert one.lookup(SPEC, pattern(), FINGERPRINT) == other.lookup(SPEC, pattern(), FINGERPRINT)
    assert one.lookup(SPEC, pattern(0.2), FINGERPRINT) == other.lookup(SPEC, pattern(0.2), FINGERPRINT)
    assert one.dense(SPEC, FINGERPRINT) == other.dense(SPEC, FINGERPRINT)
    assert [best(one.records), distill(one.records, 2)] == [best(other.records), distill(other.records, 2)]


def test_lookup_uses_no_unfit_record(path):
    wide = replace(SPEC, n=2)
    full = SparsityPattern.of(make_weight(1.0))
    fill(
        path,
        [
            make_record(status="wrong", error=3.0),
            make_record(schedule="dense_cpu"),
            make_record(spec=wide),
            make_record(spec=replace(SPEC, relu=True)),
            make_record(pattern=full),
            *(make_record(fingerprint=FINGERPRINT | {key: "other"}) for key in ("kind", "arch", "threads", "tvm")),
        ],
    )
    log = TuningLog(path)
    assert log.lookup(SPEC, pattern(), FINGERPRINT) is None
    assert log.lookup(wide, pattern(), FINGERPRINT).how == "values"
    assert log.lookup(SPEC, full, FINGERPRINT).how == "values"
    assert log.lookup(SPEC, pattern(), FINGERPRINT | {"device": "other", "cores": 64}) is None


def test_ignored_says_why(path):
    old = FINGERPRINT | {"tvm": "0.26.0"}
    fill(
        path,
        [
            make_record(),
            make_record(seed=1, fingerprint=old),
            make_record(seed=2, fingerprint=old),
            make_record(fingerprint=FINGERPRINT | {"arch": "skylake"}),
            make_record(fingerprint=old, status="timeout"),
        ],
    )
    assert TuningLog(path).ignored(SPEC, pattern(), FINGERPRINT) == [
        f"2 records of {SPEC.key} ignored: made for TVM 0.26.0, here it is 0.27.0",
        f"1 record of {SPEC.key} ignored: made for architecture skylake, here it is znver4",
    ]
    assert TuningLog(path).ignored(replace(SPEC, n=2), pattern(), FINGERPRINT) == []


def test_empty_weight_transfers_from_empty_only(path):
    empty = SparsityPattern.of(make_weight(0))
    log = fill(path, [make_record()])
    assert log.lookup(SPEC, empty, FINGERPRINT) is None
    log.append(make_record(pattern=empty))
    assert log.lookup(SPEC, empty, FINGERPRINT).how == "values"


def test_a_layer_s_best_records_of_other_batches_the_nearest_first(path):
    def at(batch, time_us, **changes):
        return make_record(spec=replace(SPEC, n=batch), times_us=(time_us,), **changes)

    nearest, next_one = at(8, 20.0), at(1, 3.0)
    others = [at(8, 21.0), at(8, 1.0, schedule="dense_cpu"), at(8, 1.0, status="wrong"), at(64, 90.0)]
    other_layer = make_record(spec=replace(SPEC, n=4, h=7), times_us=(0.5,))
    foreign = at(4, 5.0, fingerprint={**FINGERPRINT, "arch": "other"})
    fill(path, [*others, nearest, next_one, other_layer, foreign, make_record(spec=replace(SPEC, n=4))])
    found = TuningLog(path).of_other_batches(replace(SPEC, n=4), pattern(), FINGERPRINT)
    assert [(record.spec.n, record.time_us) for record in found] == [(8, 20.0), (1, 3.0)]


def test_dense_is_the_fastest_dense_record(path):
    log = fill(path, [make_record(times_us=(1.0,))])
    assert log.dense(SPEC, FINGERPRINT) is None
    log.append(make_record(schedule="dense_cpu", times_us=(5.0,), seed=1))
    log.append(make_record(schedule="dense_cpu", times_us=(4.0,), seed=2, pattern=pattern(0.5)))
    log.append(make_record(schedule="dense_cpu", times_us=(3.0,), fingerprint=FINGERPRINT | {"arch": "other"}))
    assert log.dense(SPEC, FINGERPRINT).seed == 2


def test_trials_are_those_of_this_weight_and_dense_ones_of_any(path):
    failed = make_record(decisions={"k": 1}, status="timeout", cause="10 s", times_us=(), error=None)
    fast = make_record(decisions={"k": 2}, times_us=(3.0,))
    other_schedule = make_record(decisions={"k": 4}, schedule="csr_cpu")
    dense = make_record(schedule="dense_cpu", pattern=pattern(0.5))
    elsewhere = make_record(decisions={"k": 3}, fingerprint=FINGERPRINT | {"arch": "other"})
    other_weight = make_record(pattern=pattern(0.1, 1))
    log = fill(path, [failed, fast, other_schedule, dense, elsewhere, other_weight])
    assert log.trials(SPEC, pattern(), FINGERPRINT) == [failed, fast, other_schedule, dense]


def test_merge_is_a_union_whatever_the_order(tmp_path):
    a, b, c = (tmp_path / f"{name}.jsonl" for name in "abc")
    fill(a, [make_record(seed=seed) for seed in (3, 1, 2)])
    fill(b, [make_record(seed=seed) for seed in (2, 4)])
    write(tmp_path / "c.jsonl.xz", [make_record(seed=5)])
    b.write_text(b.read_text() + "garbage\n")
    parts = [a, b, tmp_path / "c.jsonl.xz"]
    union = merge(parts, c)
    assert sorted(seeds(union)) == [1, 2, 3, 4, 5]
    assert [(line.path, line.line_number) for line in union.rejected] == [(b, 3)]
    merge([*reversed(parts), a], tmp_path / "d.jsonl")
    merge([c, c, *parts], tmp_path / "e.jsonl")
    lines = c.read_text().splitlines()
    assert lines == sorted(set(lines))
    assert c.read_text() == (tmp_path / "d.jsonl").read_text() == (tmp_path / "e.jsonl").read_text()


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(st.integers(0, 5), max_size=4), min_size=1, max_size=4), st.randoms())
def test_merge_of_any_files_is_the_sorted_union(tmp_path, contents, rng):
    with tempfile.TemporaryDirectory(dir=tmp_path) as folder:
        paths = [Path(folder, f"{index}.jsonl") for index in range(len(contents))]
        for path, content in zip(paths, contents, strict=True):
            fill(path, [make_record(seed=seed) for seed in content])
            path.touch()
        merge(paths, Path(folder, "all.jsonl"))
        again = [*paths, Path(folder, "all.jsonl"), *rng.choices(paths, k=2)]
        rng.shuffle(again)
        merge(again, Path(folder, "again.jsonl"))
        assert Path(folder, "again.jsonl").read_text() == Path(folder, "all.jsonl").read_text()
        assert set(seeds(TuningLog(Path(folder, "all.jsonl")))) == set().union(*contents)


def test_merge_loses_no_work(tmp_path, path):
    fill(path, [make_record()])
    with pytest.raises(LogError, match="exists already"):
        merge([path], path)
    with pytest.raises(LogError, match="missing"):
        merge([tmp_path / "missing.jsonl", path], tmp_path / "out.jsonl")
    path.write_text(newer_line())
    with pytest.raises(LogError, match=r"line 1: .*newer tvm-sparse"):
        merge([path], tmp_path / "out.jsonl")
    assert not (tmp_path / "out.jsonl").exists()


def test_of_another_density_what_fits_and_grows_least_is_taken(path):
    fast = make_record(seed=1, schedule="folded_cuda:npq384", times_us=(4.0,))
    second = make_record(seed=2, schedule="folded_cuda:npq128", times_us=(5.0,))
    data = make_record(seed=3, schedule="data_cuda", times_us=(6.0,))
    far = make_record(seed=4, schedule="data_cuda", pattern=pattern(0.5), times_us=(1.0,))
    log, wanted = fill(path, [fast, second, data, far]), pattern(0.2)

    def found(growth):
        match = log.lookup(fast.spec, wanted, FINGERPRINT, growth=lambda record: growth.get(record.seed, 1.0))
        return match and match.record.seed

    assert log.lookup(fast.spec, wanted, FINGERPRINT).record.seed == 1
    assert found({}) == 1
    assert found({1: 2.0}) == 3
    # Nothing is compiled for the weight of the third, so that it may take a little longer.
    assert found({1: 6.1 / 4}) == 3 and found({1: 5.6 / 4}) == 1
    assert found({1: 5.8 / 4}) == 3
    assert found({1: math.inf}) == 2
    assert found({1: math.inf, 2: math.inf}) == 3
    assert found({1: math.inf, 2: math.inf, 3: math.inf}) == 4
    assert found({1: math.inf, 2: math.inf, 3: math.inf, 4: math.inf}) is None


def test_best_distill_and_stats(path):
    records = [
        make_record(seed=1, times_us=(5.0,)),
        make_record(seed=2, times_us=(4.0,)),
        make_record(seed=3, times_us=(6.0,)),
        make_record(seed=4, schedule="dense_cpu", times_us=(9.0,)),
        make_record(seed=5, pattern=pattern(0.2), times_us=(8.0,)),
        make_record(seed=6, fingerprint=FINGERPRINT | {"arch": "other"}),
        make_record(seed=7, status="build_failed", times_us=(), cause="too big", error=None),
    ]
    log = fill(path, records)
    assert sorted(record.seed for record in best(log.records)) == [2, 5, 6]
    assert sorted(record.seed for record in distill(log.records)) == [2, 4, 5, 6]
    assert sorted(record.seed for record in distill(log.records, keep=2)) == [1, 2, 4, 5, 6]
    stats = log.stats()
    assert json.loads(json.dumps(stats)) == stats
    assert (stats["records"], stats["convolutions"], stats["weights"]) == (7, 1, 2)
    assert stats["status"] == {"ok": 6, "build_failed": 1}
    assert stats["machines"] == {"llvm znver4 2 0.27.0": 6, "llvm other 2 0.27.0": 1}


@pytest.mark.parametrize("schedule", ["dense_cudnn:fp32", "dense_cudnn:tf32"])
def test_a_librarys_layouts_are_distilled_apart(path, schedule):
    layouts = (("nchw", 5.0), ("nhwc", 6.0), ("nhwc", 7.0))
    log = fill(path, [make_record(schedule=schedule, decisions={"layout": a}, times_us=(us,)) for a, us in layouts])
    assert [record.time_us for record in distill(log.records)] == [5.0, 6.0]
    # Between layers in the same layout the slower one is the faster.
    for time_us, unconverted_us in ((4.0, 2.0), (4.5, 1.0), (4.75, 1.5)):
        log.append(replace(log.records[0], times_us=(time_us,), unconverted_times_us=(unconverted_us,)))
    assert [record.time_us for record in distill(log.records)] == [4.0, 4.5, 6.0]


def test_damaged_log_runs_no_code(path, tmp_path):
    planted = tmp_path / "planted"
    for line in (f"cos\nsystem\n(S'touch {planted}'\ntR.", f"__import__('pathlib').Path({str(planted)!r}).touch()"):
        path.write_text(line)
        assert TuningLog(path).records == []
    assert not planted.exists()
