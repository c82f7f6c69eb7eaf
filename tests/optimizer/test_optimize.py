"""The main job as one command: real trials of a small model, in Python and from the command line."""

import json
import time

import onnx
import pytest
import torch
import zoo
from rich.console import Console
from torch import nn

from tvm_sparse import optimize
from tvm_sparse.autotune.session import tasks_of
from tvm_sparse.cli.main import main
from tvm_sparse.errors import BuildError, UsageError
from tvm_sparse.frontend.prepare import prepare
from tvm_sparse.logs.known_logs import user_log
from tvm_sparse.logs.tuning_log import TuningLog
from tvm_sparse.optimizer import session
from tvm_sparse.optimizer.picture import LivePicture, Picture
from tvm_sparse.target.resolve import resolve_target

TARGET = resolve_target('{"kind":"llvm","num-cores":1}')
X = torch.randn(1, 8, 28, 28)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("TVM_SPARSE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def module():
    torch.manual_seed(0)
    found = nn.Conv2d(8, 8, 3, padding=1).eval()
    with torch.no_grad():
        found.weight *= torch.rand_like(found.weight) < 0.1
    return found


class Seen(Picture):
    """Remembers what it is told; `at_trial` is called with the number of each trial."""

    def __init__(self, at_trial=lambda number: None):
        self.trials, self.notes, self.ended, self._at_trial = 0, [], False, at_trial

    def trial(self, contest, entry):
        self.trials += 1
        self._at_trial(self.trials)

    def note(self, text):
        self.notes.append(text)

    def end(self):
        self.ended = True


def check(module, compiled):
    torch.testing.assert_close(compiled(X), module(X).detach(), rtol=1e-4, atol=1e-4)


def interrupt_at(last):
    def at_trial(number):
        if number >= last:
            raise KeyboardInterrupt

    return at_trial


def test_it_measures_compiles_and_goes_on_the_next_time(module):
    picture = Seen(interrupt_at(6))
    compiled = optimize(module, X, minutes=10, target=TARGET, picture=picture)
    assert picture.trials == 6 and picture.ended
    assert picture.notes[-1].startswith("interrupted: compiling the best that was found")
    check(module, compiled)
    log = TuningLog(user_log(TARGET))
    assert len(log.records) == 6
    (row,) = compiled.report()
    assert row["time_us"] is not None and "predicted" not in row["reason"]
    # The next run begins with what this one knows.
    optimize(module, X, minutes=10, target=TARGET, picture=Seen(interrupt_at(3)))
    log.refresh()
    keys = [(record.schedule, json.dumps(record.chosen)) for record in log.records]
    assert len(keys) == len(set(keys)) == 9


def test_without_minutes_nothing_is_measured(module):
    picture = Seen()
    compiled = optimize(module, X, minutes=0, target=TARGET, picture=picture)
    check(module, compiled)
    assert picture.trials == 0 and not user_log(TARGET).exists()
    assert compiled.report()[0]["reason"].startswith("predicted: ")


def test_the_time_asked_for_is_the_time_taken(module):
    picture, start_s = Seen(), time.monotonic()
    optimize(module, X, minutes=0.2, target=TARGET, picture=picture)
    assert picture.trials > 0
    # The end lies before the last trial begins; a busy machine takes long over one.
    assert time.monotonic() - start_s < 60


def test_a_layer_that_cannot_be_measured_is_told(module, monkeypatch):
    def fail(*_words):
        raise BuildError("convolution", "no dense kernel to compare with")

    monkeypatch.setattr("tvm_sparse.optimizer.contest.tune_layer", fail)
    picture = Seen()
    check(module, optimize(module, X, minutes=1, target=TARGET, picture=picture))
    assert picture.notes == ["convolution: no dense kernel to compare with"] and picture.ended


@pytest.mark.parametrize("minutes", [-1, float("nan"), float("inf")])
def test_no_time_to_spend(module, minutes):
    with pytest.raises(UsageError, match="is no time to spend"):
        optimize(module, X, minutes=minutes)


def test_the_command(tmp_path, capsys):
    onnx.save(zoo.ONNX["block"], tmp_path / "m.onnx")
    words = ["optimize", "m.onnx", "-o", "m.sparse", "--minutes", "0", "--json"]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["trials"] == 0 and found["log"] == str(user_log(resolve_target()))
    assert main(["run", "m.sparse"]) == 0
    assert main([*words[:3], "other.sparse", "--minutes", "0"]) == 0
    assert "written: other.sparse; 0 trials added to" in capsys.readouterr().out
    for text in ("-1", "soon", "inf"):
        with pytest.raises(SystemExit):
            main([*words[:4], "--minutes", text])


def test_the_picture(module, tmp_path):
    console = Console(record=True, width=200, force_terminal=False)
    seconds = iter(range(0, 10_000, 40))
    picture = LivePicture(console, clock=lambda: next(seconds))
    tasks = tasks_of(prepare(module, X).layers)
    picture.start(1, 1000.0)
    entry = session.Contest(tasks, TARGET, TuningLog(tmp_path / "log.jsonl"), session.OPTIONS, session._Notes(picture))
    with entry as contest:
        contest.entries[0].dense_us, contest.entries[0].sparse_us = 3000.0, 1000.0
        picture.trial(contest, contest.entries[0])
    picture.end()
    text = console.export_text()
    assert f"layers 1/1: 1 ms, dense 3 ms, 3.00x; 1 trials, now {tasks[0].names[0]}; " in text
