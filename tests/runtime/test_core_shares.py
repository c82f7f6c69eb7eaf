"""Calls of any thread share the cores: nobody waits for ever, and nothing is left of a thread, a fork or a signal."""

import os
import signal
import sys
import threading
import time

import pytest

from tvm_sparse.runtime.cpu import core_shares
from tvm_sparse.runtime.cpu.core_shares import CoreShares

CORES = 4


@pytest.fixture
def shares(monkeypatch):
    monkeypatch.setattr(core_shares, "available_cores", lambda: CORES)
    return CoreShares()


class Held:
    """Calls that run until they are let go, each in a thread of its own."""

    def __init__(self, shares):
        self.shares, self.ran = shares, []
        self.started, self.end, self.threads = threading.Semaphore(0), threading.Event(), []

    def call(self, wanted, name=None):
        def function():
            self.ran.append(name)
            self.started.release()
            assert self.end.wait(30)

        thread = threading.Thread(target=self.shares.run, args=(wanted, function))
        thread.start()
        self.threads.append(thread)
        return self

    def free(self):
        return self.shares._free

    def finish(self):
        self.end.set()
        for thread in self.threads:
            thread.join(30)
            assert not thread.is_alive()
        assert self.shares._free == self.shares._cores and not self.shares._running and not self.shares._waiting


def test_a_call_alone_gets_what_it_wants_and_the_next_ones_their_share(shares):
    held = Held(shares)
    for wanted, free in ((2, 2), (8, 0)):
        held.call(wanted).started.acquire()
        assert held.free() == free
    held.finish()


def test_those_that_wait_come_first_come_first_served(shares, monkeypatch):
    monkeypatch.setattr(core_shares, "available_cores", lambda: 1)
    held = Held(shares)
    held.call(CORES, "first").started.acquire()
    for number in range(3):
        held.call(1, number)
        while len(shares._waiting) <= number:
            time.sleep(0.001)
    held.finish()
    assert held.ran == ["first", 0, 1, 2]


@pytest.mark.parametrize("wanted", [1, CORES])
def test_results_and_errors_are_the_callers(shares, wanted):
    def fail():
        raise ValueError("no")

    assert shares.run(wanted, lambda: 5) == 5
    with pytest.raises(ValueError, match="no"):
        shares.run(wanted, fail)
    assert shares._free == CORES and not shares._running


def test_one_crew_serves_all_callers_that_follow_each_other(shares):
    crews = set()

    def call():
        shares.run(CORES, lambda: crews.add(threading.get_ident()))

    for _ in range(20):
        caller = threading.Thread(target=call)
        caller.start()
        caller.join()
    assert len(crews) == 1


def test_where_no_thread_can_be_made_the_caller_runs_it(shares, monkeypatch):
    def fail(_give_back):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(core_shares, "Crew", fail)
    assert shares.run(CORES, threading.get_ident) == threading.get_ident()
    assert shares._free == CORES


@pytest.mark.parametrize("wanted", [1, CORES])
def test_a_call_in_a_call_has_its_cores(shares, wanted):
    assert shares.run(wanted, lambda: shares.run(CORES, lambda: 3)) == 3


class Interrupt(Exception):
    """What a handler raises."""


@pytest.mark.parametrize("wanted", [1, 2, CORES])
def test_a_handler_that_raises_anywhere_costs_no_core(shares, wanted):
    """A handler comes where a function of Python begins; here it raises at each in turn, until there is none left."""

    def interrupted_at(number):
        seen = 0

        def trace(frame, event, _argument):
            nonlocal seen
            if frame.f_code.co_filename not in (core_shares.__file__, __file__) or event != "call":
                return
            seen += 1
            if seen == number:
                raise Interrupt

        sys.settrace(trace)
        try:
            shares.run(wanted, lambda: None)
        except Interrupt:
            return True
        finally:
            sys.settrace(None)
        return False

    number = 1
    while interrupted_at(number):
        number += 1
        assert shares.run(wanted, lambda: 1) == 1
    assert number > 4
    shares._settle()
    assert shares._free == CORES and not shares._running


def test_a_thread_that_is_interrupted_leaves_the_queue(shares):
    held = Held(shares)
    held.call(CORES).started.acquire()

    def handler(*_):
        raise Interrupt

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        main = threading.main_thread().ident
        sender = threading.Timer(0.1, signal.pthread_kill, (main, signal.SIGUSR1))
        sender.start()
        with pytest.raises(Interrupt):
            shares.run(1, lambda: None)
        sender.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert not shares._waiting
    held.finish()


def test_a_fork_waits_until_no_call_runs_and_no_call_begins_meanwhile(shares):
    held = Held(shares)
    held.call(1, "before").started.acquire()
    timer = threading.Timer(0.1, held.end.set)
    timer.start()
    shares.before_fork()
    assert not shares._running
    held.call(1, "meanwhile")
    while not shares._waiting:
        time.sleep(0.001)
    assert held.ran == ["before"]
    shares.after_fork()
    held.finish()
    assert held.ran == ["before", "meanwhile"]


def test_a_fork_in_the_middle_of_a_call_or_of_a_fork_waits_for_none(shares):
    def fork():
        shares.before_fork()
        shares.after_fork()

    shares.run(1, fork)
    shares.before_fork()
    fork()
    assert shares._forks == 1
    shares.after_fork()
    assert shares._forks == 0 and shares.run(1, os.getpid) == os.getpid()


def test_a_child_begins_anew(shares):
    """Here as if the calling thread were the child's only one."""
    held = Held(shares)
    held.call(CORES).started.acquire()
    core_shares._CURRENT.call, core_shares._CURRENT.forks = core_shares._FORK, 1
    shares.in_child()
    assert shares.run(CORES, lambda: shares._free) == 0
    held.end.set()
    held.finish()
