"""The script that counts which families win in logs."""

import sys

import count_wins
from factories import make_record

from tvm_sparse.logs.tuning_log import TuningLog


def test_wins_and_what_would_be_lost(tmp_path, monkeypatch, capsys):
    log = TuningLog(tmp_path / "log.jsonl")
    common = {"dense_times_us": (9.0,), "cold_times_us": None, "dense_cold_times_us": None}
    for schedule, time_us in (("folded_cpu:a", 2.0), ("folded_cpu:b", 3.0), ("csr_cpu:c", 5.0)):
        log.append(make_record(schedule=schedule, times_us=(time_us,), **common))
    assert count_wins.losses(log) == {"folded_cpu": [2.5]}
    monkeypatch.setattr(sys, "argv", ["count_wins.py", str(log.path)])
    count_wins.main()
    assert capsys.readouterr().out.splitlines()[2:] == ["| `folded_cpu` | 1 | 2.50x | 2.5x | 1 |"]
