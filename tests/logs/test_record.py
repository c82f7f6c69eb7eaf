"""The record codec: exact both ways, and strict."""

import json
import math
import re
import subprocess
import sys
import zlib

import numpy as np
import pytest
from factories import FINGERPRINT, changed, make_record, newer_line, sealed
from hypothesis import given, settings
from hypothesis import strategies as st

from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.errors import LogError
from tvm_sparse.logs.record import LEAST_TIME_US, MOST_TIME_US, TIMES, TuningRecord, decisions_key
from tvm_sparse.logs.record_codec import CHECKSUM, NewerSchemaError

plain_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
times = st.lists(st.floats(min_value=LEAST_TIME_US, max_value=MOST_TIME_US), min_size=1, max_size=5).map(tuple)


@settings(max_examples=150)
@given(
    chosen=st.lists(plain_json, max_size=4) | st.dictionaries(st.text(), plain_json, max_size=4),
    times_us=times,
    dense_times_us=times,
    cold_times_us=st.none() | times,
    dense_cold_times_us=st.none() | times,
    library_times_us=st.dictionaries(st.text(), times.map(list), max_size=2),
    library_cold_times_us=st.dictionaries(st.text(), times.map(list), max_size=2),
    unconverted_times_us=st.just(()) | times,
    unconverted_cold_times_us=st.just(()) | times,
    error=st.none() | st.floats(0, 1),
    cause=st.text(),
    seed=st.integers(),
)
def test_round_trip_is_exact(chosen, **changes):
    kept = {"decisions": chosen} if isinstance(chosen, dict) else {"decisions": {}, "trace": chosen}
    record = make_record(**kept, **changes)
    assert record.chosen == (chosen if kept.get("trace") is not None else chosen or None)
    line = record.to_line()
    assert TuningRecord.from_line(line) == record
    assert TuningRecord.from_line(line).to_line() == line
    assert "\n" not in line
    assert line.isascii()


def test_a_line_lacks_the_fields_that_are_newer_than_its_schema_where_they_are_empty():
    """So that lines without them stay as they are, and are the same record."""
    kinds = ("library_times_us", "library_cold_times_us", "unconverted_times_us", "unconverted_cold_times_us")
    names = set(kinds)
    line = make_record().to_line()
    assert not names & set(json.loads(line))
    given = {"dense_cudnn:tf32": [3.0, 4.0]}
    record = make_record(library_times_us=given)
    assert names & set(json.loads(record.to_line())) == {"library_times_us"}
    read = [TuningRecord.from_line(each.to_line()) for each in (make_record(), record)]
    assert [each.library_times_us for each in read] == [{}, given]
    assert read[0].library_times_us is not read[0].library_cold_times_us


def test_times_without_conversions_are_of_the_clock_that_counts():
    times = {"unconverted_times_us": (3.0, 9.0, 4.0), "unconverted_cold_times_us": (5.0,)}
    assert make_record().unconverted_time_us is None
    assert make_record(**times).unconverted_time_us == 4.0
    assert make_record(**times, cold_times_us=(20.0,), dense_cold_times_us=(40.0,)).unconverted_time_us == 5.0


def test_times_of_libraries_are_of_the_clock_that_counts():
    warm, cold = {"dense_cudnn:tf32": [3.0]}, {"dense_cudnn:tf32": [5.0]}
    record = make_record(library_times_us=warm, library_cold_times_us=cold)
    assert record.counting_library_times_us == warm
    assert (
        make_record(
            library_times_us=warm, library_cold_times_us=cold, cold_times_us=(20.0,), dense_cold_times_us=(40.0,)
        ).counting_library_times_us
        == cold
    )


def test_failure_round_trips_without_times():
    record = make_record(status="timeout", cause="10 s passed", times_us=(), error=None)
    assert TuningRecord.from_line(record.to_line()) == record
    assert (record.time_us, record.speedup) == (math.inf, 0)


def test_medians_and_speedup():
    record = make_record()
    assert (record.time_us, record.dense_time_us, record.speedup) == (12.5, 31.5, 31.5 / 12.5)
    alone = make_record(dense_times_us=(), baseline="")
    assert (alone.dense_time_us, alone.speedup) == (None, None)


COLD = {"cold_times_us": (20.0, 24.0, 23.0), "dense_cold_times_us": (46.0,)}


def test_times_with_cold_code_count_where_both_have_them():
    record = make_record(**COLD)
    assert record.is_cold
    assert (record.time_us, record.dense_time_us, record.speedup, record.warm_time_us) == (23, 46, 2, 12.5)
    alone = make_record(dense_times_us=(), baseline="", cold_times_us=(20.0,))
    assert (alone.is_cold, alone.time_us, alone.speedup) == (True, 20, None)
    # No ratio is taken across clocks.
    for missing in ({"dense_cold_times_us": None}, {"cold_times_us": None}, {"cold_times_us": ()}):
        half = make_record(**{**COLD, **missing})
        assert (half.is_cold, half.time_us, half.speedup) == (False, 12.5, 31.5 / 12.5)


@pytest.mark.parametrize(
    ("kind", "nnz", "times", "counts"),
    [
        ("llvm", 58, {}, True),
        ("llvm", 5_000, {}, False),
        ("llvm", 5_000, COLD, True),
        ("cuda", 58, {}, False),
        ("cuda", 58, COLD, True),
        ("cuda", 58, {"status": "timeout", "times_us": (), "error": None}, True),
    ],
)
def test_a_trial_without_cold_times_does_not_count_where_they_are_taken(kind, nnz, times, counts):
    spec = ConvSpec(n=1, c=100, h=6, w=6, k=100, r=1, s=1)
    pattern = SparsityPattern(10_000, nnz, "unstructured", 0, 0, "mask", "values")
    record = make_record(spec=spec, pattern=pattern, fingerprint=FINGERPRINT | {"kind": kind}, **times)
    assert record.is_trial_of(spec, pattern, record.fingerprint) is counts


def test_keys_are_sorted_at_every_level():
    def check(pairs):
        assert [key for key, _ in pairs] == sorted(key for key, _ in pairs)
        return dict(pairs)

    json.loads(make_record().to_line(), object_pairs_hook=check)


def test_decisions_key_ignores_order():
    assert decisions_key({"a": 1, "b": [2, 3]}) == decisions_key({"b": [2, 3], "a": 1})
    assert decisions_key({"a": 1}) != decisions_key({"a": 2})


BAD_VALUES = [
    (("times_us",), [-1.0], "times_us"),
    (("times_us",), [0.0], "times_us"),
    (("times_us",), [], "one or more"),
    (("times_us",), 3.0, "times_us"),
    (("times_us",), ["3"], "times_us"),
    (("times_us",), [True], "times_us"),
    (("times_us",), [math.nan], "NaN"),
    (("times_us",), [math.inf], "Infinity"),
    (("times_us",), [10**400], "times_us"),
    (("dense_times_us",), [-2.0], "dense_times_us"),
    (("baseline",), "", "baseline"),
    (("trace",), [math.nan], "NaN"),
    (("trace",), [], "none where there is a trace"),
    (("trace",), {}, "trace"),
    (("cold_times_us",), [0.0], "cold_times_us"),
    (("dense_cold_times_us",), "fast", "dense_cold_times_us"),
    (("library_times_us",), {"dense_cudnn:tf32": []}, "library_times_us of 'dense_cudnn:tf32'"),
    (("library_times_us",), {"dense_cudnn:tf32": [0.0]}, re.escape(TIMES)),
    (("library_cold_times_us",), {"dense_cudnn:tf32": 3.0}, "library_cold_times_us"),
    (("library_cold_times_us",), [3.0], "library_cold_times_us has the wrong type"),
    (("status",), "fine", "build_failed"),
    (("status",), ["ok"], "status"),
    (("error",), 1.5, "error"),
    (("error",), -0.5, "error"),
    (("cause",), None, "cause"),
    (("seed",), 1.0, "seed"),
    (("seed",), True, "seed"),
    (("decisions",), [], "decisions"),
    (("schedule",), "", "schedule"),
    (("fingerprint", "tvm"), 27, "tvm"),
    (("fingerprint",), {}, "kind"),
    (("timestamp",), "yesterday", "timestamp"),
    (("timestamp",), "2026-11-20T09:30:00", "UTC"),
    (("timestamp",), "2026-11-20T09:30:00+01:00", "UTC"),
    (("schema",), 0, "schema"),
    (("schema",), "1", "schema"),
    (("schema",), True, "schema"),
    (("schema",), 1.0, "schema"),
    (("spec",), 3, "spec"),
    (("spec", "n"), "1", "spec: n"),
    (("spec", "n"), 1.0, "spec: n"),
    (("spec", "n"), 0, "n is not usable"),
    (("spec", "stride"), [1], "stride"),
    (("spec", "padding"), [1, 1, 1, None], "padding"),
    (("spec", "bias"), 1, "bias"),
    (("spec", "dtype"), "float64", "dtype|element type"),
    (("spec", "layout"), "NHWC", "unknown field.*layout"),
    (("pattern", "nnz"), -1, "nnz"),
    (("pattern", "nnz"), 10**9, "nnz"),
    (("pattern", "size"), 5, "size of the weight"),
    (("pattern", "mask_digest"), 5, "mask_digest"),
    (("colour",), "red", "unknown field.*colour"),
]


@pytest.mark.parametrize(("path", "value", "reason"), BAD_VALUES, ids=lambda item: str(item)[:30])
def test_bad_value_is_named(path, value, reason):
    with pytest.raises(LogError, match=reason):
        TuningRecord.from_line(changed(path, value))


@pytest.mark.parametrize("name", sorted(set(json.loads(make_record().to_line())) - {CHECKSUM}))
def test_missing_field_is_named(name):
    data = json.loads(make_record().to_line())
    del data[name]
    with pytest.raises(LogError, match=f"missing field.*{name}"):
        TuningRecord.from_line(sealed(data))


@pytest.mark.parametrize(
    "line",
    [
        "",
        "  \t",
        "garbage",
        "\0" * 40,
        "null",
        "3",
        "[1, 2]",
        '"text"',
        '{"a":1}',
        make_record().to_line()[:-20],
        make_record().to_line().replace("12.5", "1e999"),
        make_record().to_line() * 2,
        "[" * 200_000,
        '{"schema":' + "9" * 5000 + "}",
        "\ufeff" + make_record().to_line(),
    ],
    ids=lambda line: repr(line[:12]),
)
def test_bad_line_is_a_log_error(line):
    with pytest.raises(LogError):
        TuningRecord.from_line(line)


def test_newer_schema_is_said():
    with pytest.raises(NewerSchemaError, match="written by a newer tvm-sparse, found schema 4; allowed: up to 3"):
        TuningRecord.from_line(newer_line())


def test_a_damaged_schema_is_not_taken_for_a_newer_one():
    for damaged in (newer_line()[:-4] + 'f"}', make_record().to_line().replace('"schema":3', '"schema":6')):
        with pytest.raises(LogError, match="does not match its checksum") as raised:
            TuningRecord.from_line(damaged)
        assert not isinstance(raised.value, NewerSchemaError)


@pytest.mark.parametrize("schema", [1, 2])
def test_older_lines_are_refused_by_a_sentence(schema):
    sentence = f"the line has an older form, found schema {schema}; allowed: schema 3; tune again, or read it with"
    with pytest.raises(LogError, match=sentence):
        TuningRecord.from_line(changed(("schema",), schema))


def test_who_writes_by_hand_may_leave_the_checksum_out():
    record = make_record()
    line = json.dumps({key: value for key, value in json.loads(record.to_line()).items() if key != CHECKSUM})
    assert TuningRecord.from_line(line) == record
    with pytest.raises(LogError, match="does not match its checksum"):
        TuningRecord.from_line(json.dumps({**json.loads(line), CHECKSUM: "00000000"}))


@pytest.mark.parametrize("library_times_us", [{}, {"dense_cudnn:tf32": [1.5]}])
def test_what_is_read_is_written_alike(library_times_us):
    """Whether its text was checked by its own checksum or not, and where it says what it might leave out."""
    record = make_record(library_times_us=library_times_us)
    said = {**json.loads(record.to_line()), "library_times_us": library_times_us}
    by_hand = json.dumps({key: value for key, value in said.items() if key != CHECKSUM})
    for line in (record.to_line(), record.to_line() + "\n", by_hand, sealed(said)):
        found = TuningRecord.from_line(line)
        assert found == record and found.to_line() == record.to_line()


def test_a_number_that_is_not_finite_is_refused_whatever_the_checksum():
    for number in ("NaN", "1e999"):
        line = sealed({**json.loads(make_record().to_line()), "error": 0.125}).replace("0.125", number)
        body = line.rpartition(f',"{CHECKSUM}')[0] + "}"
        line = f'{body[:-1]},"{CHECKSUM}":"{zlib.crc32(body.encode()):08x}"}}'
        with pytest.raises(LogError):
            TuningRecord.from_line(line)


def test_no_changed_character_goes_unnoticed():
    """Whatever single character is changed: what is still read is what was written, as with 1E5 for 1e5."""
    record = make_record(times_us=(1.25e-05, 3e22))
    line = record.to_line()
    for index, character in enumerate(line):
        for other in {chr(ord(character) ^ 1), chr(ord(character) ^ 32), "0", "9"} - {character}:
            try:
                found = TuningRecord.from_line(line[:index] + other + line[index + 1 :])
            except LogError:
                continue
            assert found == record


def test_formatting_is_no_damage():
    assert TuningRecord.from_line(json.dumps(json.loads(make_record().to_line()), indent=1)) == make_record()


@pytest.mark.parametrize("value", [math.nan, math.inf, object(), np.int64(3), b"x"])
def test_only_plain_json_is_written(value):
    with pytest.raises(LogError, match="plain JSON"):
        make_record(decisions={"x": value}).to_line()


@pytest.mark.parametrize(
    "changes",
    [{"times_us": (math.nan,)}, {"times_us": (math.inf,)}, {"times_us": ()}, {"times_us": [1.0]}, {"error": math.inf}],
    ids=str,
)
def test_bad_record_cannot_be_made(changes):
    with pytest.raises(LogError):
        make_record(**changes)


def test_codec_and_log_load_no_tvm():
    code = (
        "import sys, tvm_sparse.logs.tuning_log; print(sorted({'tvm', 'tvm_ffi', 'torch', 'onnx'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
