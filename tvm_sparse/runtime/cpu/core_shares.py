"""CoreShares: divides the cores among calls of compiled models, from any thread of the process.

A call alone gets as many threads as its model wants. Where several threads call, each gets its share and they run side
by side, because to hand a core over takes as long as a small model runs. Those for whom no core is free queue up, first
come, first served: a lock would go to whoever just had it.

A call with one thread is run by its caller, one with more by a `Crew`. So a thread that ends leaves no pool of TVM's
behind, and one that forks has none that the child would miss.

In the main thread a signal's handler may come, and raise, when a function has been called or begins, and nowhere else.
What must not be torn has no call in it here, and `_settle` may be begun again.
"""

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from tvm_sparse.runtime.cpu.crew import Call, Crew
from tvm_sparse.runtime.cpu.threads import run_alone, use_threads
from tvm_sparse.target.cpu import available_cores

# Those that wait look this often whether a handler that raised has kept others from waking them.
_LOOK_S = 1.0
# A handler that forks looks this often whether the crew has done the call that it interrupted.
_CREW_LOOK_S = 0.001
# The cores are divided among as many calls as met within this time: threads that call again and again are not in a call
# at each moment.
_MEMORY_S = 0.02


class _Current(threading.local):
    """The call that the calling thread is in, and how many forks: a handler may interrupt one and fork too."""

    call: Call | None = None
    forks = 0


_CURRENT = _Current()
# Stands for the call that a thread which forks is in: it waits until there is no other.
_FORK = Call(lambda: None, 0, 0)
# And for that of a crew.
_CREW = Call(lambda: None, 0, 0)


class CoreShares:
    """See the module."""

    def __init__(self) -> None:
        self._process = 0
        self._begin()

    def _begin(self) -> None:
        """With no call running and none waiting."""
        self._lock = threading.Lock()
        self._is_quiet = threading.Condition(self._lock)
        # Read by the first call: a child may choose its cores first.
        self._cores = self._free = 0
        self._running = self._forks = 0
        # The most calls that ran and waited when one came, with itself, and when that was.
        self._crowd, self._crowded_s = 1, 0.0
        self._waiting: deque[Call] = deque()
        # Calls whose cores are to be given back, by whoever comes next.
        self._returned: deque[Call] = deque()
        self._crews: list[Crew] = []

    def run(self, threads: int, function: Callable[[], Any]) -> Any:
        """What `function` returns or raises, called with `threads` threads at most.

        A signal's handler or a finaliser that interrupts a call may call too: it has the cores of that call.
        """
        # When Python exits, crews are gone.
        if _CURRENT.call is not None or sys.is_finalizing():
            return run_alone(function)
        call = _CURRENT.call = Call(function, threads, self._process)
        try:
            self._take(call)
            return self._run_by_crew(call) if call.cores > 1 else run_alone(function)
        finally:
            try:
                if not call.is_handed_over:
                    self._returned.append(call)
                    self._settle()
            finally:
                _CURRENT.call = None

    def _take(self, call: Call) -> None:
        """Return when `call` has cores, or where this is a child that was forked meanwhile."""
        if self._returned:
            self._settle()
        with self._lock:
            if not self._cores:
                self._cores = self._free = available_cores()
            self._count(self._running + len(self._waiting) + 1)
            if not self._waiting and self._free and not self._forks:
                self._grant(call)
                return
            call.will_wait()
            self._waiting.append(call)
        while not call.cores and call.process == self._process:
            if not call.wait(_LOOK_S):
                self._settle()

    def _count(self, crowd: int) -> None:
        now_s = time.monotonic()
        if crowd >= self._crowd or now_s - self._crowded_s > _MEMORY_S:
            self._crowd, self._crowded_s = crowd, now_s

    def _grant(self, call: Call) -> None:
        """Give an equal share of the cores, of those that are free."""
        cores = min(call.wanted, max(1, self._cores // self._crowd), self._free)
        self._running += 1
        self._free -= cores
        call.cores = cores
        if cores > 1 and self._crews:
            call.crew = self._crews[-1]
            del self._crews[-1]

    def _run_by_crew(self, call: Call) -> Any:
        if call.crew is None:
            try:
                call.crew = Crew(self._work)
            except RuntimeError:
                return run_alone(call.function)
        call.will_wait()
        call.is_handed_over = True
        call.crew.start(call)
        interrupt: BaseException | None = None
        # What the crew reads and writes is the caller's, who gets it back when the crew has ended.
        while not call.is_done and call.process == self._process:
            try:
                call.wait()
            except BaseException as error:
                interrupt = error
        if interrupt is not None:
            raise interrupt
        if not call.is_done:
            return run_alone(call.function)
        if call.error is not None:
            raise call.error
        return call.result

    def _work(self, call: Call) -> None:
        """What a crew does with a call."""
        _CURRENT.call = _CREW
        try:
            use_threads(call.cores)
            call.result = call.function()
        except BaseException as error:
            call.error = error
        call.is_done = True
        self._returned.append(call)
        self._settle()

    def _settle(self) -> None:
        """Take back what was returned, and let those that wait go on while cores are free."""
        with self._lock:
            while self._returned:
                self._take_back(self._returned[0])
                del self._returned[0]
            while self._waiting and self._free and not self._forks:
                call = self._waiting[0]
                if not call.cores:
                    self._grant(call)
                del self._waiting[0]
                call.wake()
            if self._forks and not self._running:
                self._is_quiet.notify_all()

    def _take_back(self, call: Call) -> None:
        if call.process != self._process:
            return
        if call.cores:
            self._running -= 1
            self._free += call.cores
            call.cores = 0
            if call.crew is not None:
                self._crews.append(call.crew)
        elif call in self._waiting:
            self._waiting.remove(call)

    def before_fork(self) -> None:
        """Wait until no call runs, so that the child finds no model in the middle of one."""
        # A handler forks that interrupted a call, or a fork: it would wait for itself. But the crew that has the call
        # may hold locks of TVM's, for which the child would wait.
        if (call := _CURRENT.call) is not None:
            while call.is_handed_over and not call.is_done and call.process == self._process:
                time.sleep(_CREW_LOOK_S)
            _CURRENT.forks += 1
            return
        _CURRENT.call = _FORK
        with self._lock:
            self._forks += 1
            _CURRENT.forks += 1
        while self._running:
            with self._is_quiet:
                if self._running:
                    self._is_quiet.wait(_LOOK_S)
            self._settle()

    def after_fork(self) -> None:
        """Go on, in the parent."""
        if _CURRENT.forks > 1 or _CURRENT.call is not _FORK:
            _CURRENT.forks -= 1
            return
        with self._lock:
            self._forks -= 1
            _CURRENT.forks -= 1
        self._settle()
        _CURRENT.call = None

    def in_child(self) -> None:
        """Begin anew, without crews: of all threads only the one that forked is in the child."""
        self._process += 1
        self._begin()
        _CURRENT.forks -= 1
        if _CURRENT.call is _FORK:
            # What the handler interrupted, another fork, goes on in the child too.
            self._forks = min(1, _CURRENT.forks)
            _CURRENT.call = _FORK if _CURRENT.forks else None
        elif _CURRENT.call is not None:
            _CURRENT.call.wake()


CORE_SHARES = CoreShares()
os.register_at_fork(
    before=CORE_SHARES.before_fork, after_in_parent=CORE_SHARES.after_fork, after_in_child=CORE_SHARES.in_child
)
