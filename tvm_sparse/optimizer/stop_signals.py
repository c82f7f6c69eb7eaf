"""Signals that ask this process to stop: noted when they come, and heeded where nothing is lost.

Python raises KeyboardInterrupt wherever it happens to be; TVM and XGBoost, where they call Python, make another error
of that, or none. Compilers of the process's group would end too, at Ctrl-C.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType

# timeout(1) sends each signal to the process and to its group: what comes later than this is another one.
AGAIN_S = 1.0
# Handlers that end the process: a program that handles, or ignores, a signal in another way shall go on doing so.
DEFAULTS = (signal.SIG_DFL, signal.default_int_handler)


class StopSignals:
    """Sets `stop` when one of `numbers` comes; a context manager that then restores the former handlers.

    A second Ctrl-C raises KeyboardInterrupt, until `finish`. Other threads than the main one may set no handlers: there
    this does nothing.

    * `numbers`: signals, those left out which this process handles or ignores already.
    * `tell`: called with the first that comes.
    * `at_once`: raise KeyboardInterrupt at the first, and whichever comes again.
    * `is_last`: the process ends afterwards: what comes then ends it without a word.
    """

    def __init__(
        self,
        numbers: Sequence[int] = (signal.SIGINT,),
        tell: Callable[[int], None] = lambda _number: None,
        at_once: bool = False,
        is_last: bool = False,
    ):
        self.stop = threading.Event()
        # The first that came and when, and whether KeyboardInterrupt was raised.
        self.number: int | None = None
        self._since_s, self.is_given_up = 0.0, False
        self._numbers, self._tell, self._at_once, self._is_last = numbers, tell, at_once, is_last
        self._is_finishing = False

    def finish(self) -> None:
        """From now on signals are noted only."""
        self._is_finishing = True

    def __enter__(self) -> StopSignals:
        is_main = threading.current_thread() is threading.main_thread()
        taken = [number for number in self._numbers if is_main and signal.getsignal(number) in DEFAULTS]
        self._ended = threading.Event()
        if taken and not self._at_once:
            # Processes and threads that this one starts have its mask, so compilers live on; this thread has the
            # signals delivered, and Python handles them in the main one.
            threading.Thread(target=self._ended.wait, daemon=True).start()
        self._former = {number: signal.signal(number, self._note) for number in taken}
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, [] if self._at_once else taken)
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        for number, handler in self._former.items():
            signal.signal(number, signal.SIG_DFL if self._is_last else handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        self._ended.set()
        if self.is_given_up and isinstance(error, Exception):
            # TVM has made another error of it.
            raise KeyboardInterrupt from error

    def _note(self, number: int, _frame: FrameType | None) -> None:
        now_s = time.monotonic()
        if self.number is None:
            self.number, self._since_s = number, now_s
            self.stop.set()
            self._tell(number)
            is_raised = self._at_once
        else:
            is_raised = now_s > self._since_s + AGAIN_S and (self._at_once or number == signal.SIGINT)
        if is_raised and not self._is_finishing:
            self.is_given_up = True
            raise KeyboardInterrupt
