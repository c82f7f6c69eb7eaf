"""Which of two records is faster: cold before warm, ratios between runs, quartiles for a verdict."""

import itertools

import pytest
from factories import make_record

from tvm_sparse.logs.ranking import against_baseline, comparable_times_us, fastest, ranked
from tvm_sparse.measure.quartiles import Quartiles, time_verdict


def record(time_us, dense_us=None, baseline="dense_cpu", cold_us=None, dense_cold_us=None, seed=0):
    def times(value):
        return None if value is None else (value,)

    return make_record(
        times_us=(time_us,),
        dense_times_us=times(dense_us) or (),
        baseline=baseline if dense_us else "",
        cold_times_us=times(cold_us),
        dense_cold_times_us=times(dense_cold_us),
        seed=seed,
    )


# A machine that was half as fast in the second run.
FIRST, SECOND = record(10.0, 30.0, seed=1), record(16.0, 60.0, seed=2)


def test_records_of_two_runs_are_compared_by_their_ratio_to_one_baseline():
    assert ranked([FIRST, SECOND]) == [SECOND, FIRST]
    # The baseline takes 45 us in the median of both.
    assert comparable_times_us([FIRST, SECOND]) == [10 / 30 * 45, 16 / 60 * 45]


@pytest.mark.parametrize("other", [record(16.0, 60.0, "dense_gemm"), record(16.0)])
def test_with_another_baseline_or_none_only_times_are_left(other):
    assert ranked([other, FIRST]) == [FIRST, other]


def test_times_with_cold_code_come_before_those_without():
    cold = record(10.0, 30.0, cold_us=50.0, dense_cold_us=60.0)
    assert ranked([FIRST, SECOND, cold]) == [cold, SECOND, FIRST]
    faster = record(20.0, 30.0, cold_us=40.0, dense_cold_us=60.0)
    assert fastest([cold, faster, FIRST]) is faster


def test_the_ratio_is_that_of_the_clock_that_counts():
    """Warm, the first is three times as fast as dense, the second twice; in a model it is the other way round."""
    folded = record(10.0, 30.0, cold_us=50.0, dense_cold_us=60.0)
    as_data = record(15.0, 30.0, cold_us=20.0, dense_cold_us=60.0)
    assert ranked([folded, as_data]) == [as_data, folded]


def test_the_order_of_records_changes_nothing():
    records = [FIRST, SECOND, record(10.0, 30.0, seed=3), record(12.0), record(9.0, 9.0, "dense_gemm")]
    orders = {tuple(each.to_line() for each in ranked(some)) for some in itertools.permutations(records)}
    assert len(orders) == 1


@pytest.mark.parametrize(
    ("own", "baseline", "verdict"),
    [
        ((8.0, 9.0, 10.0, 11.0, 30.0), (12.0, 12.1, 12.2, 12.3, 12.4), "faster"),
        ((12.0, 12.1, 12.2, 12.3, 12.4), (8.0, 9.0, 10.0, 11.0, 30.0), "slower"),
        # The median is below, but a quarter of the times is not.
        ((8.0, 9.0, 10.0, 13.0, 14.0), (11.0, 12.0, 12.0, 12.0, 13.0), "undecided"),
        ((10.0,), (10.0,), "undecided"),
        ((10.0,), (10.1,), "faster"),
    ],
)
def test_a_verdict_comes_from_quartiles(own, baseline, verdict):
    assert time_verdict(Quartiles.of(own), Quartiles.of(baseline)) == verdict
    found = against_baseline(make_record(times_us=own, dense_times_us=baseline))
    assert (found.verdict, found.is_cold) == (verdict, False)


def test_a_record_without_a_baseline_is_compared_on_a_clock_that_both_have():
    own, dense = record(10.0, cold_us=40.0), record(20.0, cold_us=30.0)
    assert against_baseline(own) is None
    assert [against_baseline(own, other).verdict for other in (dense, record(20.0))] == ["slower", "faster"]
    assert against_baseline(own, dense).is_cold


def test_the_fastest_dense_kernel_that_is_allowed_is_the_baseline():
    rivals = {"dense_cudnn:fp32": [30.0], "dense_cudnn:tf32": [12.0]}
    own = make_record(times_us=(10.0,), dense_times_us=(40.0,), baseline="dense_cuda", library_times_us=rivals)
    found = against_baseline(own)
    assert (found.name, found.baseline.median, set(found.others)) == (
        "dense_cudnn:fp32",
        30,
        {"dense_cuda", "dense_cudnn:tf32"},
    )
    found = against_baseline(own, None, lambda _: True)
    assert (found.name, found.baseline.median, found.verdict) == ("dense_cudnn:tf32", 12, "faster")
    # Where none is, a kernel of another run is left.
    assert against_baseline(own, None, lambda _: False) is None
    other = make_record(schedule="dense_other", times_us=(20.0,), dense_times_us=(), baseline="")
    found = against_baseline(own, other, lambda name: name == "dense_other")
    assert (found.name, found.baseline.median) == ("dense_other", 20)
