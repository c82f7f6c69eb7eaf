"""The main job as one command: a small model, in Python, one test with real trials, and from the command line."""

import json
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain, repeat
from pathlib import Path
from typing import ClassVar

import onnx
import pytest
import torch
import zoo
from rich.console import Console
from torch import nn

from tvm_sparse import optimize, tune
from tvm_sparse.autotune.session import tasks_of
from tvm_sparse.cli.commands import optimize as command
from tvm_sparse.cli.main import main
from tvm_sparse.compiler.plan.choice import Default
from tvm_sparse.compiler.plan.kernel_selection import decide
from tvm_sparse.compiler.plan.plan import Plan
from tvm_sparse.errors import BuildError, UsageError
from tvm_sparse.frontend.prepare import prepare
from tvm_sparse.logs.known_logs import shipped_folder, user_log
from tvm_sparse.logs.tuning_log import TuningLog
from tvm_sparse.optimizer import session, stop_signals
from tvm_sparse.optimizer.picture import LivePicture, Picture
from tvm_sparse.target.resolve import resolve_target

TARGET = resolve_target('{"kind":"llvm","num-cores":1,"opt-level":0}')
ELSEWHERE = '{"kind":"llvm","mtriple":"powerpc64le-linux-gnu","num-cores":1,"opt-level":0}'
X = torch.randn(1, 8, 28, 28)


pytestmark = pytest.mark.usefixtures("small_populations")


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("TVM_SPARSE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def judged(monkeypatch):
    """The models that a clock would be asked about; tests/verdict has one that is."""
    found = []
    monkeypatch.setattr(session, "verdict_on", lambda model, *_words: found.append(model) or model.verdict)
    return found


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


def test_it_measures_compiles_and_goes_on_the_next_time(module, request):
    picture = Seen(interrupt_at(4))
    compiled = optimize(module, X, minutes=10, target=TARGET, progress=picture)
    assert picture.trials == 4 and picture.ended
    assert picture.notes[-1].startswith("interrupted: compiling the best that was found")
    check(module, compiled)
    log = TuningLog(user_log(TARGET))
    assert len(log.records) == 4
    (row,) = compiled.report()
    assert row["time_us"] is not None and "predicted" not in row["reason"]
    # The next run begins with what this one knows, whatever it measures.
    request.getfixturevalue("nothing_built")
    optimize(module, X, minutes=10, target=TARGET, progress=Seen(interrupt_at(2)))
    log.refresh()
    keys = [(record.schedule, json.dumps(record.chosen)) for record in log.records]
    assert len(keys) == len(set(keys)) == 6


@pytest.fixture
def ctrl_c(monkeypatch):
    """A function that presses Ctrl-C, which Python heeds in its own way before and afterwards."""
    monkeypatch.setattr(stop_signals, "AGAIN_S", -1.0)
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield lambda *_: os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, usual)


def test_ctrl_c_gives_the_best_so_far(module, ctrl_c, nothing_built):
    picture = Seen(lambda number: ctrl_c() if number == 2 else None)
    check(module, optimize(module, X, minutes=10, target=TARGET, progress=picture))
    assert picture.notes[-1] == "interrupted: compiling the best that was found"
    log = TuningLog(user_log(TARGET))
    assert len(log.records) == picture.trials >= 2
    assert not any("interrupted" in record.cause for record in log.records)


def test_ctrl_c_twice_gives_up(module, ctrl_c, monkeypatch):
    def build(*_words):
        for _ in range(2):
            ctrl_c()
            time.sleep(0.1)
        raise RuntimeError("as TVM makes of what a function that it calls raises")

    monkeypatch.setattr(session.Compilation, "build", build)
    with pytest.raises(KeyboardInterrupt):
        optimize(module, X, minutes=0, target=TARGET)


def test_another_thread_ends_the_measuring(module, nothing_built):
    stop = threading.Event()
    picture = Seen(lambda _number: stop.set())
    with ThreadPoolExecutor(1) as pool:
        made = pool.submit(optimize, module, X, minutes=10, target=TARGET, progress=picture, stop=stop)
        check(module, made.result())
    assert picture.trials >= 1


def test_without_minutes_nothing_is_measured(module, judged):
    picture = Seen()
    compiled = optimize(module, X, minutes=0, target=TARGET, progress=picture)
    check(module, compiled)
    assert compiled.verdict.kind == "predicted" and not judged
    assert picture.trials == 0 and not user_log(TARGET).exists()
    assert compiled.report()[0]["reason"].startswith("predicted: ")


def test_nothing_is_timed_for_a_target_that_does_not_run_here(module, judged):
    compiled = optimize(module, X, target=ELSEWHERE, log="log.jsonl")
    assert compiled.report() and not judged and not Path("log.jsonl").exists()
    with pytest.raises(UsageError, match="nothing can be timed for it here: it was built for") as refused:
        tune(module, X, target=ELSEWHERE, log="log.jsonl", trials=2)
    assert "compile takes predicted kernels" in str(refused.value) and not Path("log.jsonl").exists()


def test_the_time_asked_for_is_the_time_taken(module, judged, nothing_built):
    picture, start_s = Seen(), time.monotonic()
    optimize(module, X, minutes=0.1, target=TARGET, progress=picture)
    assert picture.trials > 0 and len(judged) == 1
    # The end lies before the last trial begins; a busy machine takes long over one.
    assert time.monotonic() - start_s < 60


class Watch:
    """A contest that notes until when it is to run."""

    asked: ClassVar[list[float]] = []

    def __init__(self, *_words):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_words):
        pass

    def run(self, end_s, _look):
        self.asked.append(end_s)


def asked_until(module, monkeypatch, minutes, seconds):
    """Seconds after its start until which `optimize` measures, where compiling is estimated to take `seconds`."""
    estimates = chain(seconds, repeat(seconds[-1]))
    monkeypatch.setattr(session, "Contest", Watch)
    monkeypatch.setattr(Watch, "asked", [])
    monkeypatch.setattr(session, "compile_seconds", lambda *_words: next(estimates))
    start_s = time.monotonic()
    optimize(module, X, minutes=minutes, target=TARGET, progress=False)
    return [round(end_s - start_s) for end_s in Watch.asked]


def test_what_compiling_is_expected_to_take_is_kept_for_it(module, monkeypatch):
    """Estimated again with what was found until then; half of the time is measured, however long that is."""
    assert asked_until(module, monkeypatch, 2, [20, 5, 5]) == [100, 115, 115]
    assert asked_until(module, monkeypatch, 2, [500]) == [60, 60, 60]


def test_code_takes_longer_to_compile_than_data(module):
    prepared = prepare(module, X)
    (dense,) = decide(prepared.layers, TARGET, TuningLog("none.jsonl"), predict=False)
    folded = replace(dense, choice=Default("folded_cpu:x"))

    def seconds(decision, target=TARGET, count=1):
        return session.compile_seconds([Plan.of(prepared, [decision], target)] * count, target)

    assert seconds(folded) == pytest.approx(seconds(dense) + session.CODE_S * prepared.layers[0].pattern.nnz)
    assert seconds(dense, count=2) == 2 * seconds(dense)
    cuda = resolve_target('{"kind":"cuda","arch":"sm_90"}')
    folded, as_data = (replace(dense, choice=Default(name)) for name in ("folded_cuda", "data_cuda"))
    assert seconds(folded, cuda) > seconds(as_data, cuda)


def test_several_batches(module, nothing_built):
    compiled = optimize(module, X, minutes=0, target=TARGET, batch=[1, 3])
    assert compiled.batches == (1, 3)
    x = torch.randn(4, 8, 28, 28)
    torch.testing.assert_close(compiled(x), module(x).detach(), rtol=1e-4, atol=1e-4)
    picture = Seen(interrupt_at(1))
    picture.start = lambda layers, _end_s: picture.notes.append(f"{layers} layers")
    optimize(module, X, minutes=10, target=TARGET, batch=[1, 3], progress=picture)
    assert picture.notes[0] == "2 layers"


@pytest.mark.parametrize("named", [[], ["own.jsonl"], ["own.jsonl", "other.jsonl"]])
def test_the_command_reads_what_is_known_too(named, tmp_path, monkeypatch):
    """As Python's log does; what is named comes first, and the first of it is written."""
    onnx.save(zoo.ONNX["block"], tmp_path / "m.onnx")
    (tmp_path / "other.jsonl").touch()
    user_log(resolve_target()).parent.mkdir(parents=True)
    user_log(resolve_target()).touch()
    logs = []
    monkeypatch.setattr(command, "optimize", lambda *words, **o: logs.append(o["log"]) or optimize(*words, **o))
    words = [word for path in named for word in ("--tuning-records", path)]
    assert main(["optimize", "m.onnx", "-o", "m.sparse", "--minutes", "0", *words]) == 0
    (log,) = logs
    assert log.path == (Path(named[0]) if named else user_log(resolve_target()))
    assert log.layers == tuple(map(Path, named[1:]))
    unnamed = [path for path, _ in log._unnamed]
    assert any(shipped_folder() in path.parents for path in unnamed)
    assert (user_log(resolve_target()) in unnamed) == bool(named)


def test_the_command_takes_batches(tmp_path, capsys):
    onnx.save(zoo.ONNX["block"], tmp_path / "m.onnx")
    assert main(["optimize", "m.onnx", "-o", "m.sparse", "--minutes", "0", "--batch", "2", "--json"]) == 0
    assert {row["variant"] for row in json.loads(capsys.readouterr().out)["layers"]} == {"batch 2"}


def test_a_layer_that_cannot_be_measured_is_told(module, monkeypatch):
    def fail(*_words):
        raise BuildError("convolution", "no dense kernel to compare with")

    monkeypatch.setattr("tvm_sparse.optimizer.contest.tune_layer", fail)
    picture = Seen()
    check(module, optimize(module, X, minutes=1, target=TARGET, progress=picture))
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
    assert text.splitlines()[-1] == "1 of 1 layers measured: 3 -> 1 ms, 3.00x; 1 trials"
    assert f"; now {tasks[0].names[0]}; 960 s of measuring left" in text
