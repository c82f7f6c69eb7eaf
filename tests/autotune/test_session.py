"""Tuning a model into a log that others write too: who tunes what, what is moved away, what the user is told."""

import subprocess
import sys
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from factories import make_record, newer_line

from tvm_sparse.autotune import session, task_lock
from tvm_sparse.autotune.options import TuneOptions
from tvm_sparse.compiler import build_model
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.errors import LogError, UsageError
from tvm_sparse.logs.record import decisions_key
from tvm_sparse.logs.tuning_log import TuningLog
from tvm_sparse.measure.worker import Worker
from tvm_sparse.target.fingerprint import fingerprint_of
from tvm_sparse.target.resolve import resolve_target, target_json

FAULTY = str(Path(__file__).parents[1] / "support" / "faulty_worker.py")
TARGET = resolve_target('{"kind":"llvm","num-cores":1}')
# More than the dense ones, which count for every weight.
TRIALS = 5
OPTIONS = TuneOptions(trials=TRIALS, schedules=("csr_cpu",))
# Tunes `TASKS` into argv[1] with kernels that are not built.
TUNER = """
import sys
from tvm_sparse.frontend.optional_imports import without_torch

with without_torch():
    from test_session import *

    Worker.command = (sys.executable, FAULTY)
    session.tune_tasks(TASKS, TARGET, TuningLog(sys.argv[1]), OPTIONS, session.Progress())
"""
# Claims argv[2] beside argv[1], says so, and keeps it until a line comes.
HOLDER = """
import sys
from pathlib import Path
from tvm_sparse.autotune import task_lock

for item in task_lock.in_turn(Path(sys.argv[1]), [sys.argv[2]], str, lambda item: print(item, flush=True)):
    print("claimed", flush=True)
    sys.stdin.readline()
"""


def make_task(k):
    spec = ConvSpec(1, 4, 6, 6, k, 3, 3, padding=(1, 1, 1, 1))
    weight = np.where(np.random.default_rng(k).random(spec.weight_shape) < 0.3, 1.5, 0).astype(np.float32)
    return session.Task((f"conv{k}",), spec, weight, SparsityPattern.of(weight))


TASKS = [make_task(8), make_task(16)]


def start(code, *words):
    command = [sys.executable, "-c", code, *map(str, words)]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent
    )


def candidates(log):
    return Counter((record.spec.key, record.schedule, decisions_key(record.decisions)) for record in log.records)


def test_two_processes_share_the_layers_of_a_model(tmp_path):
    path = tmp_path / "log.jsonl"
    tuners = [start(TUNER, path) for _ in range(2)]
    for tuner in tuners:
        tuner.communicate(timeout=300)
        assert tuner.returncode == 0
    log = TuningLog(path)
    assert log.rejected == []
    assert Counter(record.spec.k for record in log.records) == {8: TRIALS, 16: TRIALS}
    assert set(candidates(log).values()) == {1}, "a candidate was measured twice"
    assert {record.status for record in log.records} == {"ok"}


def test_bad_lines_are_moved_away_and_trials_of_other_weights_are_told(tmp_path, monkeypatch):
    monkeypatch.setattr(Worker, "command", (sys.executable, FAULTY))
    path, notes = tmp_path / "log.jsonl", []
    monkeypatch.setattr(session.Progress, "note", lambda _self, text: notes.append(text))
    for weight in (TASKS[0].weight, 2 * TASKS[0].weight):
        task = replace(TASKS[0], weight=weight, pattern=SparsityPattern.of(weight))
        session.tune_task(task, TARGET, TuningLog(path), OPTIONS, session.Progress())
        with path.open("a") as file:
            file.write("garbage\n")
    moved, ignored = notes
    assert moved == f"{path}: 1 bad line(s) moved to {path}.rejected"
    assert ignored.strip().endswith("ignored: made for other weights")
    assert f'"line": {TRIALS + 1}' in path.with_name("log.jsonl.rejected").read_text()


def test_records_of_a_newer_tvm_sparse_stop_everything(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text(newer_line() + "\n")
    for use in (session.tune, build_model.compile):
        with pytest.raises(LogError, match=r"line 1: .*upgrade tvm-sparse"):
            use("a model that is not read", log=path)
    assert path.read_text() == newer_line() + "\n"


def test_a_batch_starts_from_what_was_fastest_at_the_others(tmp_path, monkeypatch):
    """Tasks are in the order of batches, and each search is given the log's best of the batches before."""
    import torch

    module, found = torch.nn.Conv2d(4, 8, 3, bias=False).eval(), []

    def tune_layer(spec, weight, target, options, known, out_of_time, starts, worker_pool, ended_early):
        found.append((spec.n, [(record.spec.n, record.times_us) for record in starts]))
        for time_us in (2.0 * spec.n, 1.0 * spec.n):
            yield make_record(
                spec=spec,
                pattern=SparsityPattern.of(weight),
                times_us=(time_us,),
                fingerprint=fingerprint_of(target),
                target=target_json(target),
            )

    monkeypatch.setattr(session, "tune_layer", tune_layer)
    tune = partial(
        session.tune, module, torch.zeros(1, 4, 6, 6), target=TARGET, log=tmp_path / "log.jsonl", batch=[8, 1, 64]
    )
    tune()
    assert found == [(1, []), (8, [(1, (1.0,))]), (64, [(8, (8.0,)), (1, (1.0,))])]
    with pytest.raises(UsageError, match=r"not in the model, found b; allowed: \w+$"):
        tune(layers=["b"])


def in_turn(path, items):
    """The order in which items are claimed, with a note where another process was waited for."""
    order = []
    for item in task_lock.in_turn(path, items, str, lambda item: order.append(f"wait {item}")):
        order.append(item)
        yield order


def test_what_others_have_claimed_comes_last(tmp_path):
    path = tmp_path / "log.jsonl"
    holder = start(HOLDER, path, "b")
    assert holder.stdout.readline() == "claimed\n"
    turns = in_turn(path, ["a", "b", "c"])
    assert next(turns) == ["a"]
    assert next(turns) == ["a", "c"]
    # A killed holder frees its claim.
    holder.kill()
    holder.communicate()
    assert list(turns) == [["a", "c", "b"]]
    assert list(in_turn(path, [])) == []


def test_the_last_claim_is_waited_for(tmp_path):
    path = tmp_path / "log.jsonl"
    holder = start(HOLDER, path, "a")
    holder.stdout.readline()
    waiter = start(HOLDER, path, "a")
    assert waiter.stdout.readline() == "a\n"
    assert waiter.poll() is None
    holder.communicate("\n", timeout=60)
    assert waiter.communicate("\n", timeout=60)[0] == "claimed\n"


def test_a_claim_needs_a_place(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(LogError, match="no log can be made there"):
        next(in_turn(tmp_path / "file" / "log.jsonl", ["a"]))


def test_claims_leave_no_file_beside_the_log(tmp_path):
    assert len(list(in_turn(tmp_path / "new" / "log.jsonl", ["a", "b"]))) == 2
    assert list((tmp_path / "new").iterdir()) == []
