"""A machine that does other work is noticed while models are timed."""

import os
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from tvm_sparse.verdict import machine_load
from tvm_sparse.verdict.machine_load import MachineLoad, Snapshot, why_unreliable

QUIET = MachineLoad(cores=4, others_cores=0.02, stolen_share=0.0, load_average=3.0)
STEADY = {"ours": (10.0, 10.1, 10.2), "dense": (20.0, 20.1, 20.2)}


@pytest.mark.parametrize(
    ("load", "threads", "times_us", "why"),
    [
        (QUIET, 4, STEADY, ""),
        (None, 4, STEADY, ""),
        (replace(QUIET, others_cores=1.3), 4, STEADY, "other work on this machine, 1.3 of 4 cores"),
        # It finds cores that we do not use.
        (replace(QUIET, others_cores=1.3), 2, STEADY, ""),
        (replace(QUIET, stolen_share=0.12), 1, STEADY, "other work on this machine's host, which took 12% of the time"),
        (QUIET, 4, {**STEADY, "dense": (10.0, 20.0, 30.0)}, "repeated timings differ by 50%"),
        (None, 4, {**STEADY, "ours": (10.0, 10.0, 99.0)}, "repeated timings differ by 445%"),
        (QUIET, 4, {"ours": (10.0,)}, ""),
    ],
)
def test_what_makes_times_worthless(load, threads, times_us, why):
    assert why_unreliable(load, threads, times_us) == why


@pytest.mark.parametrize("line", ["cpu{} 100 20 30 400 5 6 7 800 9 10"])
def test_cores_that_are_not_ours_do_not_count(line, tmp_path, monkeypatch):
    ours = os.sched_getaffinity(0)
    lines = ["cpu  9 9 9 9 9 9 9 9 9 9", *(line.format(core) for core in [*ours, max(ours) + 1]), "intr 5"]
    (tmp_path / "stat").write_text("\n".join(lines))
    monkeypatch.setattr(machine_load, "STAT", tmp_path / "stat")
    found, tick_s = Snapshot.take(), 1 / os.sysconf("SC_CLK_TCK")
    assert found.ran_s == pytest.approx(len(ours) * 163 * tick_s)
    assert found.stolen_s == pytest.approx(len(ours) * 800 * tick_s)
    monkeypatch.setattr(machine_load, "STAT", tmp_path / "none")
    assert Snapshot.take() is None and MachineLoad.between(found, None, 0.0) is None


def test_shares_of_a_span():
    cores = len(os.sched_getaffinity(0))
    start, end = Snapshot(10.0, 100.0, 5.0), Snapshot(14.0, 108.0, 6.0)
    found = MachineLoad.between(start, end, own_s=6.0)
    assert (found.others_cores, found.stolen_share) == (0.5, 1.0 / 4.0 / cores)
    # Ticks of 10 ms are not ours exactly.
    assert MachineLoad.between(start, end, own_s=9.0).others_cores == 0.0
    assert found.to_json()["others_cores"] == 0.5


def test_another_process_is_seen():
    """One that counts until it is killed takes time that is not ours."""
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        start, own_s = Snapshot.take(), time.process_time()
        while (end := Snapshot.take()).ran_s - start.ran_s < 0.5:
            time.sleep(0.05)
        assert MachineLoad.between(start, end, time.process_time() - own_s).others_cores > 0
    finally:
        other.kill()
        other.wait()
