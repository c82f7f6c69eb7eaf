"""Python's functions show how far they are where somebody looks, and nothing elsewhere."""

import io

import pytest
import torch
from torch import nn

import tvm_sparse as ts

TARGET = '{"kind":"llvm","num-cores":1}'
X = torch.randn(1, 8, 14, 14)


class Terminal(io.StringIO):
    """Standard error that somebody looks at."""

    def isatty(self):
        return True


@pytest.fixture
def module(nothing_built, tmp_path, monkeypatch):
    """A layer whose kernels are not built while it is tuned."""
    monkeypatch.setenv("TVM_SPARSE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tvm_sparse.optimizer.session.verdict_on", lambda model, *_words: model.verdict)
    torch.manual_seed(0)
    return nn.Conv2d(8, 8, 3, padding=1).eval()


def tune(module, **words):
    options = ts.TuneOptions(dense_trials=1, measure=ts.MeasureOptions(repeats=2, min_repeat_ms=1.0))
    ts.tune(module, X, target=TARGET, trials=2, options=options, **words)


def compile(module, **words):
    ts.compile(module, X, target=TARGET, **words)


def optimize(module, **words):
    ts.optimize(module, X, minutes=0.02, target=TARGET, **words)


CASES = [(tune, "2/2"), (compile, "compiling"), (optimize, "of 1 layers measured")]


@pytest.mark.parametrize(("function", "text"), CASES)
def test_a_terminal_sees_how_far_it_is(function, text, module, monkeypatch):
    shown = Terminal()
    monkeypatch.setattr("sys.stderr", shown)
    function(module)
    assert text in shown.getvalue() and "\x1b[?25h" in shown.getvalue(), "live, and the cursor is back"


@pytest.mark.parametrize("function", [function for function, _ in CASES])
def test_nothing_elsewhere_and_nothing_on_request(function, module, monkeypatch, tmp_path):
    log, shown = io.StringIO(), Terminal()
    monkeypatch.setattr("sys.stderr", log)
    function(module)
    monkeypatch.setattr("sys.stderr", shown)
    function(module, progress=False)
    assert log.getvalue() == shown.getvalue() == ""


def test_an_object_is_told_instead(module, monkeypatch):
    told, shown = [], Terminal()

    class Told(ts.Progress):
        def trial(self, record):
            told.append(record)

    monkeypatch.setattr("sys.stderr", shown)
    tune(module, progress=Told())
    assert len(told) >= 2 and shown.getvalue() == ""
