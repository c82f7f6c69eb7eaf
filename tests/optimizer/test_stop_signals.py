"""Signals set an event, and nothing of the process is other afterwards."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from tvm_sparse.optimizer import stop_signals
from tvm_sparse.optimizer.stop_signals import StopSignals


@pytest.fixture(autouse=True)
def handler(monkeypatch):
    """Python's own for Ctrl-C, which a process in the background has not; what comes later is another one at once."""
    monkeypatch.setattr(stop_signals, "AGAIN_S", -1.0)
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == mask
    signal.signal(signal.SIGINT, usual)


def interrupt():
    """Python handles a signal when this thread runs next, which a wait without end would keep it from."""
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(50):
        time.sleep(0.001)


def test_the_first_is_noted_and_the_second_raised(monkeypatch):
    monkeypatch.setattr(stop_signals, "AGAIN_S", 60.0)
    told = []
    with StopSignals(tell=told.append) as signals:
        for _ in range(2):
            interrupt()
        assert signals.stop.is_set()
        assert (signals.number, told) == (signal.SIGINT, [signal.SIGINT])
        monkeypatch.setattr(stop_signals, "AGAIN_S", 0.0)
        with pytest.raises(KeyboardInterrupt):
            interrupt()


def test_nothing_is_raised_while_it_finishes():
    with StopSignals() as signals:
        signals.finish()
        interrupt()
        assert signals.stop.is_set() and not signals.is_given_up


def test_the_first_is_raised_where_nothing_is_to_be_finished():
    with pytest.raises(KeyboardInterrupt), StopSignals(at_once=True) as signals:
        interrupt()
    assert signals.stop.is_set()


def test_what_tvm_makes_of_it_is_an_interrupt():
    with pytest.raises(KeyboardInterrupt), StopSignals(at_once=True):
        try:
            interrupt()
        except KeyboardInterrupt:
            raise RuntimeError("in a packed function") from None


def test_another_error_stays():
    with pytest.raises(RuntimeError, match="of its own"), StopSignals():
        raise RuntimeError("of its own")


def test_processes_live_on():
    code = "import time; print(1, flush=True); time.sleep(0.5); print(2)"
    with StopSignals() as signals:
        child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        assert child.stdout.readline() == "1\n"
        child.send_signal(signal.SIGINT)
        assert child.communicate() == ("2\n", None) and child.returncode == 0
        assert not signals.stop.is_set()


@pytest.mark.parametrize("own", [signal.SIG_IGN, lambda _number, _frame: None])
def test_a_program_s_own_way_stays(own):
    signal.signal(signal.SIGINT, own)
    with StopSignals() as signals:
        assert signal.getsignal(signal.SIGINT) is own
        interrupt()
    assert not signals.stop.is_set()
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_in_another_thread_it_does_nothing():
    found = []

    def work():
        with StopSignals() as signals:
            found.append((signal.getsignal(signal.SIGINT), signals.stop.is_set()))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [(signal.default_int_handler, False)]
